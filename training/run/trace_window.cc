#include "training/run/trace_window.h"

#include "engine/io/atomic_write.h"

namespace tandem::training {

void TraceWindow::Begin(const ProfilerSection& wanted, int64_t first_step) {
  if (!wanted.enabled) return;
  begin_ = first_step + wanted.skip_first_n_steps;
  end_ = begin_ + wanted.steps;
}

Trace* TraceWindow::At(int64_t step) {
  is_open_ = step >= begin_ && step < end_;
  if (!is_open_) return nullptr;
  is_new_ = true;
  trace_.set_step(step);
  return &trace_;
}

void TraceWindow::Write(const std::filesystem::path& dir) {
  if (!is_new_) return;
  std::filesystem::create_directories(dir);
  engine::WriteFileAtomically(dir / "trace.json", trace_.ChromeJson());
  engine::WriteFileAtomically(dir / "summary.txt", trace_.Summary());
  is_new_ = false;
}

}  // namespace tandem::training
