#pragma once

#include <cstdint>
#include <string>

#include "training/data/sample.h"

namespace tandem::training {

// The training data of a run as numbered samples: delimited text, rows, or a prepared file. A
// sample depends on its number only, so a resumed run need not read earlier ones again. Const and
// thread-safe.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t size() const = 0;
  virtual Sample Make(int64_t i) const = 0;
  // The place of sample i, for readers: "line 7", "text 3".
  virtual std::string Where(int64_t i) const = 0;
};

}  // namespace tandem::training
