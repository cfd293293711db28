// How the ranks of a CUDA group come to see each other's workspaces.
#include <sys/random.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/cuda_communicator.h"

namespace stoker::comm {

// What a rank tells its peers so that they can map its workspace.
struct CudaCommunicator::Address {
  uint64_t process;  // drawn once a process: pids repeat between containers
  void* pointer;
  cudaIpcMemHandle_t handle;
  cudaUUID_t device;
};

namespace {

absl::StatusOr<uint64_t> ProcessToken() {
  static const uint64_t token = [] {
    uint64_t value = 0;
    return getrandom(&value, sizeof(value), 0) == sizeof(value) ? value : 0;
  }();
  if (token == 0) return absl::UnavailableError("getrandom gave no random number");
  return token;
}

bool SameDevice(const cudaUUID_t& a, const cudaUUID_t& b) {
  return std::memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
}

// The ordinal of a device in this process, or -1 where it is hidden from it.
int OrdinalOf(const cudaUUID_t& uuid) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return -1;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess &&
        SameDevice(properties.uuid, uuid)) {
      return ordinal;
    }
  }
  return -1;
}

// `rank` is the peer on the device of that identity.
absl::Status EnablePeerAccess(int device, const cudaUUID_t& peer, int rank) {
  const int ordinal = OrdinalOf(peer);
  if (ordinal < 0 || ordinal == device) return absl::OkStatus();
  int can = 0;
  STOKER_CUDA(cudaDeviceCanAccessPeer(&can, device, ordinal));
  if (can == 0) {
    return absl::UnavailableError(absl::StrCat("device ", device, " has no peer access to device ",
                                               ordinal, " of rank ", rank,
                                               "; see `nvidia-smi topo -p2p w`"));
  }
  const cudaError_t error = cudaDeviceEnablePeerAccess(ordinal, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return absl::OkStatus();
  }
  return CudaStatus(error, "cudaDeviceEnablePeerAccess");
}

// What a rank writes into its peers' workspaces to see that it arrives.
uint64_t ProbeWord(int rank) { return HeaderWord(0x50524F42u, static_cast<uint32_t>(rank)); }

}  // namespace

absl::Status CudaCommunicator::Connect(RankExchange& exchange, absl::Duration timeout) {
  Address mine{};
  cudaDeviceProp properties;
  STOKER_CUDA(cudaGetDeviceProperties(&properties, device_));
  STOKER_ASSIGN_OR_RETURN(mine.process, ProcessToken());
  mine.pointer = workspace_[plan_.rank];
  mine.device = properties.uuid;
  STOKER_CUDA(cudaIpcGetMemHandle(&mine.handle, mine.pointer));
  STOKER_ASSIGN_OR_RETURN(
      const std::vector<std::string> messages,
      exchange.AllGather("exchanging workspaces",
                         absl::string_view(reinterpret_cast<const char*>(&mine), sizeof(mine)),
                         timeout));
  std::vector<Address> addresses(plan_.world);
  int ranks_here = 0;
  bool one_device = true;
  for (int peer = 0; peer < plan_.world; ++peer) {
    if (messages[peer].size() != sizeof(Address)) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", peer, " sent an address of ", messages[peer].size(), " bytes"));
    }
    std::memcpy(&addresses[peer], messages[peer].data(), sizeof(Address));
    if (SameDevice(addresses[peer].device, mine.device)) ++ranks_here;
    one_device = one_device && SameDevice(addresses[peer].device, addresses[0].device);
    for (int other = 0; other < peer; ++other) {
      gpu_shared_ |= SameDevice(addresses[peer].device, addresses[other].device);
    }
  }
  absl::Status mapped;
  for (int peer = 0; peer < plan_.world && mapped.ok(); ++peer) {
    if (peer != plan_.rank) mapped = MapPeer(peer, addresses[peer], mine.process);
  }
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded("mapping the peers' workspaces", mapped, timeout));
  // By writing, not by attribute: mappings have been seen to open and not to work.
  STOKER_RETURN_IF_ERROR(
      exchange.AllSucceeded("writing to the peers' workspaces", WriteToPeers(), timeout));
  STOKER_RETURN_IF_ERROR(
      exchange.AllSucceeded("reading the own workspace", ReadWhatPeersWrote(), timeout));
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded(
      "wiping the workspace", Wipe(Epoch(plan_.first_epoch), Generation(0)), timeout));
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded("checking workspaces", CheckPeers(), timeout));

  wire_ = one_device ? SharedGpuWire(plan_.world) : kNvlink4Wire;
  if (placement_.sms <= 0) placement_.sms = properties.multiProcessorCount / ranks_here;
  if (properties.major < 9) placement_.cluster_max = 1;
  return absl::OkStatus();
}

absl::Status CudaCommunicator::MapPeer(int peer, const Address& theirs, uint64_t own_process) {
  STOKER_RETURN_IF_ERROR(EnablePeerAccess(device_, theirs.device, peer));
  if (theirs.process == own_process) {
    workspace_[peer] = theirs.pointer;
    return absl::OkStatus();
  }
  STOKER_RETURN_IF_ERROR(CudaStatus(
      cudaIpcOpenMemHandle(&workspace_[peer], theirs.handle, cudaIpcMemLazyEnablePeerAccess),
      absl::StrCat("cudaIpcOpenMemHandle of rank ", peer,
                   "'s workspace (ranks in containers need a shared PID and IPC namespace)")));
  opened_[peer] = true;
  return absl::OkStatus();
}

absl::Status CudaCommunicator::WriteToPeers() {
  const uint64_t word = ProbeWord(plan_.rank);
  for (int peer = 0; peer < plan_.world; ++peer) {
    Header* slot = HeadersOf(workspace_[peer]) + plan_.rank;
    STOKER_CUDA(cudaMemcpyAsync(&slot->tokens, &word, sizeof(word), cudaMemcpyHostToDevice,
                                control_stream_));
  }
  // cudaMemcpy from pageable memory may return before the bytes are there; a synchronise does not.
  return CudaStatus(cudaStreamSynchronize(control_stream_), "writing to the peers' workspaces");
}

absl::Status CudaCommunicator::ReadWhatPeersWrote() {
  Header seen[kWorldMax];
  STOKER_CUDA(
      cudaMemcpy(seen, HeadersOf(workspace_[plan_.rank]), sizeof(seen), cudaMemcpyDeviceToHost));
  for (int peer = 0; peer < plan_.world; ++peer) {
    if (seen[peer].tokens != ProbeWord(peer)) {
      return absl::UnavailableError(absl::StrCat(
          "what rank ", peer, " wrote into rank ", plan_.rank,
          "'s workspace did not arrive: peer access between their devices does not work"));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaCommunicator::CheckPeers() {
  for (int peer = 0; peer < plan_.world; ++peer) {
    Control seen;
    STOKER_CUDA(cudaMemcpy(&seen, workspace_[peer], sizeof(seen), cudaMemcpyDeviceToHost));
    STOKER_RETURN_IF_ERROR(CheckControl(seen, plan_, Generation(0), peer));
  }
  return absl::OkStatus();
}

}  // namespace stoker::comm
