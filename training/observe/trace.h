#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::training {

// Where the time of a few steps went. TraceSpan records it, from one thread. Names must outlive it.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Lane { kSteps, kCompute, kData, kCheckpoint };

  void set_step(int64_t step) { step_ = step; }
  void Add(Lane lane, std::string_view name, std::string_view part, Clock::time_point from,
           Clock::time_point to) {
    spans_.push_back({lane, name, part, step_, from, to});
  }

  bool empty() const { return spans_.empty(); }
  // The format of chrome://tracing and ui.perfetto.dev; a lane is a thread.
  std::string ChromeJson() const;
  // Shares of the steps' time by kind of work, the largest first.
  std::string Summary() const;

 private:
  struct Span {
    Lane lane = Lane::kCompute;
    std::string_view name;
    std::string_view part;  // "forward", "backward"; may be empty
    int64_t step = 0;
    Clock::time_point from;
    Clock::time_point to;
  };

  int64_t step_ = 0;
  std::vector<Span> spans_;
};

// Adds its lifetime to the trace. Without a trace it costs one well-predicted branch.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Trace::Lane lane, std::string_view name, std::string_view part = {})
      : trace_(trace) {
    if (trace_ == nullptr) return;
    lane_ = lane;
    name_ = name;
    part_ = part;
    from_ = Trace::Clock::now();
  }
  ~TraceSpan() {
    if (trace_ != nullptr) trace_->Add(lane_, name_, part_, from_, Trace::Clock::now());
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* const trace_;
  Trace::Lane lane_{};
  std::string_view name_;
  std::string_view part_;
  Trace::Clock::time_point from_;
};

}  // namespace tandem::training
