#include "comm/protocol.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace stoker::comm {
namespace {

LaunchDescriptor Base() {
  return {Op::kFinalize,
          WireType::kBf16,
          Protocol::kOneShot,
          Mode::kRounded,
          7168,
          8,
          1e-5f,
          0.0f,
          2.5f,
          3,
          1};
}

TEST(Signature, DependsOnEveryField) {
  std::vector<LaunchDescriptor> variants(11, Base());
  variants[0].op = Op::kPlain;
  variants[1].wire_type = WireType::kFp16;
  variants[2].mode = Mode::kFp32Residual;
  variants[3].hidden = 6144;
  variants[4].top_k = 6;
  variants[5].eps = 1e-6f;
  variants[6].weight_bias = 1.0f;
  variants[7].routed_scaling_factor = 1.0f;
  variants[8].site = 4;
  variants[9].generation = 2;
  std::set<uint32_t> signatures;
  for (const LaunchDescriptor& variant : variants) signatures.insert(Signature(variant));
  EXPECT_EQ(signatures.size(), variants.size());
}

TEST(WorkspaceLayout, PacketsOfAllSourcesTokensAndHalvesAreDisjointAndFillTheMailbox) {
  const WorkspaceLayout layout{.world = 3, .capacity = 5, .stride = 4};
  std::set<int64_t> seen;
  for (uint32_t epoch : {6u, 7u}) {
    for (int source = 0; source < 3; ++source) {
      for (int token = 0; token < 5; ++token) {
        for (int packet = 0; packet < 4; ++packet) {
          seen.insert(layout.packet_index(epoch, source, token, packet));
        }
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), 2 * layout.half_packets());
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 2 * layout.half_packets() - 1);
}

TEST(WorkspaceLayout, ASizeAboveTwoGibibytesDoesNotOverflow) {
  const WorkspaceLayout layout{.world = 8, .capacity = 16384, .stride = kHiddenMax / 8};
  EXPECT_EQ(layout.scales_offset(),
            WorkspaceLayout::kMailboxOffset + int64_t{2} * 8 * 16384 * 2048 * 16);
  EXPECT_EQ(layout.bytes(), layout.scales_offset() + 2 * 16384 * 8);
}

TEST(Header, ParityAndSourceChooseTheSlot) {
  EXPECT_EQ(WorkspaceLayout::header_index(4, 2), 2);
  EXPECT_EQ(WorkspaceLayout::header_index(0xFFFFFFFFu, 2), kWorldMax + 2);
  const uint64_t word = HeaderWord(0xFFFFFFFEu, 7);
  EXPECT_EQ(HeaderEpoch(word), 0xFFFFFFFEu);
  EXPECT_EQ(HeaderValue(word), 7u);
}

}  // namespace
}  // namespace stoker::comm
