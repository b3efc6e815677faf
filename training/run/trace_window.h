#pragma once

#include <cstdint>
#include <filesystem>

#include "training/observe/trace.h"
#include "training/spec/spec.h"

namespace tandem::training {

// The steps of a process that are traced, and the files that come of it.
class TraceWindow {
 public:
  // The process goes on after `first_step` steps.
  void Begin(const ProfilerSection& wanted, int64_t first_step);

  // What step `step` is recorded in; null: not at all.
  Trace* At(int64_t step);
  // What goes on between steps is recorded in; null: not at all.
  Trace* open() { return is_open_ ? &trace_ : nullptr; }
  // Whether the window has just ended, with `steps_done` steps done.
  bool IsOver(int64_t steps_done) const { return end_ > 0 && steps_done == end_; }

  // trace.json and summary.txt in `dir`, once, where there is something new. Throws kIo.
  void Write(const std::filesystem::path& dir);

 private:
  Trace trace_;
  int64_t begin_ = 0;
  int64_t end_ = 0;  // 0: nothing is traced
  bool is_open_ = false;
  bool is_new_ = false;
};

}  // namespace tandem::training
