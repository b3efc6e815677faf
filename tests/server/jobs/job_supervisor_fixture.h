#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/jobs/job_supervisor.h"
#include "tests/engine/io/file_helpers.h"

// Jobs are shell scripts here, called as `script train --job DIR`. A job that must keep running
// until the test has checked it waits for the file DIR/go.

namespace tandem::server {

using engine::ExpectError;
using engine::FileText;
using engine::TemporaryDir;
using engine::WriteFile;
using std::chrono::milliseconds;
using StopMode = JobSupervisor::StopMode;

inline constexpr std::chrono::seconds kPatience{
    60};  // until a test is called failed; never waited out

// The rename publishes the whole result at once, as the trainer does.
inline constexpr const char* kSucceed =
    R"(printf '{"status":"succeeded","model_dir":"artifact"}' > "$3/result.tmp")"
    R"( && mv "$3/result.tmp" "$3/result.json"; exit 0)";
inline constexpr const char* kWaitForGo = R"(while [ ! -e "$3/go" ]; do sleep 0.01; done)";
inline constexpr const char* kCountRuns = R"(echo run >> "$3/runs")";
inline constexpr const char* kStopOnTerm = R"(trap 'exit 75' TERM)";

// For conditions outside the supervisor; its own conditions have a subscription.
inline bool WaitFor(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

inline std::filesystem::path WriteScript(const std::filesystem::path& path,
                                         const std::vector<std::string>& lines) {
  std::string text = "#!/bin/sh\n";
  for (const std::string& line : lines) text += line + "\n";
  WriteFile(path, text);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

inline JobSupervisorOptions FastOptions(const std::filesystem::path& program) {
  JobSupervisorOptions options;
  options.program = program;
  options.poll_interval = milliseconds(5);
  options.restart_delay = milliseconds(0);
  return options;
}

class JobSupervisorTest : public testing::Test {
 protected:
  // The next call replaces the script, so that a restarted job may behave differently.
  void Script(const std::vector<std::string>& lines) { WriteScript(dir_ / "script", lines); }

  void StartSupervisor(const std::function<void(JobSupervisorOptions&)>& change = {}) {
    JobSupervisorOptions options = FastOptions(dir_ / "script");
    if (change) change(options);
    supervisor_ = std::make_unique<JobSupervisor>(
        JobStore::Open(data_dir()), options,
        [this](const Job& job) {
          if (on_succeeded_) on_succeeded_(job);
        },
        [this](const Job& job) {
          if (on_cancelled_) on_cancelled_(job);
        });
  }

  Job Submit(const std::string& spec = "{}") { return supervisor_->Submit(JobType::kTrain, spec); }

  // Waits for `condition`; checks it at every change that the supervisor reports.
  Job WaitForJob(const std::string& id, const std::function<bool(const Job&)>& condition) {
    std::mutex mutex;
    std::condition_variable changed;
    int changes = 0;
    const JobSubscription subscription = supervisor_->Subscribe(id, [&] {
      const std::lock_guard lock(mutex);
      ++changes;
      changed.notify_one();
    });
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (int seen = 0;;) {
      Job job = supervisor_->Find(id).value();
      if (condition(job)) return job;
      std::unique_lock lock(mutex);
      if (!changed.wait_until(lock, deadline, [&] { return changes != seen; })) {
        ADD_FAILURE() << "job stays " << NameOf(job.status) << "; log:\n"
                      << FileText(job.dir / "log.txt");
        return job;
      }
      seen = changes;
    }
  }
  Job WaitForEnd(const std::string& id) {
    return WaitForJob(id, [](const Job& job) { return IsFinished(job.status); });
  }
  Job WaitForEndOf(const Job& job, JobStatus expected) {
    Job ended = WaitForEnd(job.id);
    EXPECT_EQ(NameOf(ended.status), NameOf(expected))
        << (ended.error ? ended.error->message : std::string());
    return ended;
  }
  // Waits until the script has written DIR/`name`.
  void WaitForFile(const Job& job, const std::string& name) {
    EXPECT_TRUE(WaitFor([&] { return std::filesystem::exists(job.dir / name); })) << name;
  }

  // Waits until the script has counted its run: the file appears before its line does.
  static void WaitForFirstRun(const Job& job) {
    EXPECT_TRUE(WaitFor([&] { return Runs(job) == 1; }));
  }

  static void Go(const Job& job) { WriteFile(job.dir / "go", ""); }
  static size_t Runs(const Job& job) {
    return FileText(job.dir / "runs").size() / std::string("run\n").size();
  }

  std::filesystem::path data_dir() const { return dir_ / "data"; }

  TemporaryDir dir_;
  std::function<void(const Job&)> on_succeeded_;
  std::function<void(const Job&)> on_cancelled_;
  std::unique_ptr<JobSupervisor> supervisor_;
};

}  // namespace tandem::server
