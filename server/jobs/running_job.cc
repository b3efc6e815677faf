#include "server/jobs/running_job.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"

namespace tandem::server {
namespace {

constexpr int kPiecesPerStep = 4;     // of events.jsonl, 256 KiB each
constexpr int kPiecesAtTheEnd = 256;  // bounds the time that one job can hold the supervisor

std::filesystem::path ResultFile(const std::filesystem::path& dir) { return dir / "result.json"; }

// The number after `name` in the message of a training step.
std::optional<double> NumberBehind(const std::string& text, std::string_view name) {
  const size_t at = text.find(name);
  if (at == std::string::npos) return std::nullopt;
  const char* begin = text.c_str() + at + name.size();
  char* end = nullptr;
  const double number = std::strtod(begin, &end);
  return end != begin && std::isfinite(number) ? std::optional(number) : std::nullopt;
}

}  // namespace

std::filesystem::path SpecFile(const std::filesystem::path& dir) { return dir / "spec.json"; }
std::filesystem::path EventsFile(const std::filesystem::path& dir) { return dir / "events.jsonl"; }
std::filesystem::path LogFile(const std::filesystem::path& dir) { return dir / "log.txt"; }

void JobProgress::Add(const ProgressEvent& event) {
  if (event.total_steps > 0) {
    fraction =
        std::min(1.0, static_cast<double>(event.step) / static_cast<double>(event.total_steps));
  }
  checkpoint = checkpoint || event.kind == "checkpoint";
  if (event.kind == "step") {
    const int64_t steps = (figures ? figures->steps : 0) + 1;
    figures = {steps, event.value, NumberBehind(event.message, "Tokens/s/device: ")};
  }
}

Publication::Publication(std::function<void()> publish, std::function<void()> on_end)
    : thread_([this, publish = std::move(publish), on_end = std::move(on_end)] {
        NameThisThread("tandem-publish");
        error_ = Attempt(publish);
        has_ended_ = true;
        on_end();
      }) {}

Publication::~Publication() { thread_.join(); }

RunningJob::RunningJob(std::string id, std::filesystem::path dir,
                       std::unique_ptr<JobProcess> process, int64_t events_offset)
    : id_(std::move(id)),
      dir_(std::move(dir)),
      process_(std::move(process)),
      events_(EventsFile(dir_), events_offset) {}

void RunningJob::End(std::chrono::milliseconds grace) {
  if (!kill_at_) {
    process_->Terminate();
    kill_at_ = Clock::now() + grace;
  } else if (!killed_ && Clock::now() >= *kill_at_) {
    spdlog::warn("job ignores SIGTERM, killing it id={}", id_);
    process_->Kill();
    killed_ = true;
  }
}

bool RunningJob::ReadEvents(JobProgress& progress) {
  const auto add = [&](const ProgressEvent& event) { progress.Add(event); };
  // Polled before the read: an ended process has then written all of its events.
  int pieces = process_->Poll() ? kPiecesAtTheEnd : kPiecesPerStep;
  bool more = true;
  while (more && pieces-- > 0) more = events_.Read(add);
  return more;
}

bool RunningJob::HasGrown() {
  const int64_t bytes = FileBytes(LogFile(dir_)) + FileBytes(EventsFile(dir_));
  return bytes != std::exchange(seen_bytes_, bytes);
}

EndedRun RunningJob::ReadEnd(const ExitStatus& exit) const {
  EndedRun run;
  run.exit = exit;
  run.result = ReadJobResult(ResultFile(dir_));
  run.last_log_lines = LastLogLines(LogFile(dir_));
  return run;
}

}  // namespace tandem::server
