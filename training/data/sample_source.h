#pragma once

#include <cstdint>
#include <string>

#include "training/data/sample.h"

namespace tandem::training {

// What a run trains on, as numbered samples: text cut at delimiters, rows of a JSON file, a
// prepared file. A sample is a function of its number, so a run that goes on after a kill reads
// nothing again. Const; any thread.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t size() const = 0;
  virtual Sample Make(int64_t i) const = 0;
  // Where sample i stands, for people: "line 7", "text 3".
  virtual std::string Where(int64_t i) const = 0;
};

}  // namespace tandem::training
