// A number that means one thing, so that two of them cannot be passed for each other.
//
//   using Epoch = StrongId<struct EpochTag, uint32_t>;
//
// It is made explicitly, compares with its own kind only, and gives its number back by value().
// Nothing else can be done with it: arithmetic is the business of whoever knows what it counts.
#pragma once

namespace stoker {

template <class Tag, class Number>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(Number value) : value_(value) {}
  constexpr Number value() const { return value_; }
  friend constexpr bool operator==(StrongId, StrongId) = default;

 private:
  Number value_{};
};

}  // namespace stoker
