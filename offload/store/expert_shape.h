// The sizes of an expert, and the parts that its bytes consist of.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"
#include "offload/store/scheme.h"

namespace stoker::offload {

enum class ScaleType { kBf16, kFp16, kFp32 };

struct ExpertShape {
  int hidden = 0;
  int intermediate = 0;
  int group = 0;  // weights that share a scale
  ScaleType scale_type = ScaleType::kBf16;
  bool zero_points = false;  // stored; else every zero is 8
  // Gate and up are one matrix, rows gate 0, up 0, gate 1, ...: the parts of gate hold it, those of
  // up are empty.
  bool interleaved = false;
  SwigluParameters swiglu = {};
  bool operator==(const ExpertShape&) const = default;
};

// Weights [rows, columns / 2] bytes, low nibble first; scales [rows, columns / group]; zero points
// [rows / 8, columns / group] little-endian 32-bit words, row r in nibble r % 8 of its word. A part
// modulo 3 is its projection.
enum Part {
  kGate,
  kUp,
  kDown,
  kGateScale,
  kUpScale,
  kDownScale,
  kGateZero,
  kUpZero,
  kDownZero,
  kParts
};
const char* PartName(int part);
inline bool IsScale(int part) { return part >= kGateScale && part < kGateZero; }
size_t ScaleBytes(ScaleType type);
const char* ScaleTypeName(ScaleType type);
// Whether none of these scales is infinite or not a number.
bool FiniteScales(absl::string_view scales, ScaleType type);

}  // namespace stoker::offload
