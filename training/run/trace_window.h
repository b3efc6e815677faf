#pragma once

#include <cstdint>
#include <filesystem>

#include "training/observe/trace.h"
#include "training/spec/spec.h"

namespace tandem::training {

// Selects the traced steps of a process and writes the trace files.
class TraceWindow {
 public:
  // Starts a process that has done `first_step` steps.
  void Begin(const ProfilerSection& wanted, int64_t first_step);

  // The trace of step `step`; null: it is not traced.
  Trace* At(int64_t step);
  // The trace for work between steps; null: it is not traced.
  Trace* open() { return is_open_ ? &trace_ : nullptr; }
  // Whether the window ended exactly after `steps_done` steps.
  bool IsOver(int64_t steps_done) const { return end_ > 0 && steps_done == end_; }

  // Writes trace.json and summary.txt to `dir` if anything is new. Throws kIo.
  void Write(const std::filesystem::path& dir);

 private:
  Trace trace_;
  int64_t begin_ = 0;
  int64_t end_ = 0;  // 0: nothing is traced
  bool is_open_ = false;
  bool is_new_ = false;
};

}  // namespace tandem::training
