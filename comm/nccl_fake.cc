// A libnccl of a test: the functions that we take from NCCL, behaving as environment variables say.
//   FAKE_NCCL_VERSION  what ncclGetVersion tells; default that of the header
//   FAKE_NCCL_INIT     "never": connecting does not end; "refuse": it fails as for two ranks on a
//   GPU FAKE_NCCL_ERROR    "remote": what ncclCommGetAsyncError finds
// ncclAllReduce counts; FakeNcclCalls and FakeNcclAborts tell how often it was called.
#include <nccl.h>

#include <cstdlib>
#include <cstring>

namespace {

int calls = 0, aborts = 0;

bool Says(const char* variable, const char* value) {
  const char* said = std::getenv(variable);
  return said != nullptr && std::strcmp(said, value) == 0;
}

}  // namespace

struct ncclComm {};

extern "C" {

__attribute__((visibility("default"))) int FakeNcclCalls() { return calls; }
__attribute__((visibility("default"))) int FakeNcclAborts() { return aborts; }

ncclResult_t ncclGetVersion(int* version) {
  const char* said = std::getenv("FAKE_NCCL_VERSION");
  *version = said == nullptr ? NCCL_VERSION_CODE : std::atoi(said);
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 7, sizeof(*id));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId id, int,
                                    ncclConfig_t* config) {
  if (id.internal[0] != 7 || config->blocking != 0) return ncclInvalidArgument;
  *comm = new ncclComm;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  if (Says("FAKE_NCCL_INIT", "never")) *error = ncclInProgress;
  if (Says("FAKE_NCCL_INIT", "refuse")) *error = ncclInvalidUsage;
  if (Says("FAKE_NCCL_ERROR", "remote")) *error = ncclRemoteError;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  ++aborts;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                           cudaStream_t) {
  ++calls;
  return ncclInProgress;
}
const char* ncclGetLastError(ncclComm_t) { return "Duplicate GPU detected"; }
}
