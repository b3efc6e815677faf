#include <fcntl.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "server/jobs/unique_fd.h"
#include "tests/server/jobs/job_supervisor_fixture.h"

namespace tandem::server {
namespace {

TEST_F(JobSupervisorTest, ProgressFollowsTheEventsThroughHostileLines) {
  Script({R"(exec 4>> "$3/events.jsonl")",
          R"(echo 'not json' >&4; printf '\000\377\n' >&4; echo '{"kind":"step","step":"x"}' >&4)",
          R"(head -c 700000 /dev/zero | tr '\0' '[' >&4; echo >&4)",
          R"(echo '{"kind":"step","step":3,"total_steps":4}' >&4; printf '{"kind":"st' >&4)",
          kWaitForGo, kSucceed});
  StartSupervisor();

  const Job job = Submit();
  WaitForJob(job.id, [](const Job& now) { return now.progress == 0.75; });
  Go(job);

  WaitForEndOf(job, JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, PipeInPlaceOfTheEventsStopsNobody) {
  Script({R"(mkfifo "$3/events.jsonl")", kSucceed});
  StartSupervisor();

  WaitForEndOf(Submit(), JobStatus::kSucceeded);
}

TEST_F(JobSupervisorTest, HostileResultFailsTheJob) {
  Script({R"(head -c 3000000 /dev/zero > "$3/result.json")"});
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kFailed);

  EXPECT_EQ(job.error->code, "bad_result");
  EXPECT_NE(job.error->message.find("3000000 bytes"), std::string::npos) << job.error->message;
}

TEST_F(JobSupervisorTest, FollowerSeesEveryLineOnceAndTheEnd) {
  Script({"echo one", kWaitForGo, "echo two", "printf three", kSucceed});
  StartSupervisor();
  const Job job = Submit();
  std::string text;
  int64_t offset = 0;
  bool ended = false;

  WaitForJob(job.id, [&](const Job&) {
    const JobLog log = supervisor_->ReadLog(job.id, offset, 4096);
    for (const LogLine& line : log.lines.lines) {
      EXPECT_GE(line.offset, offset);
      text += line.text + ";";
    }
    offset = log.lines.next_offset;
    if (text == "one;") Go(job);
    ended = IsFinished(log.status) && log.lines.at_end;
    return ended;
  });

  EXPECT_EQ(text, "one;two;three;");
  ExpectError(ErrorCode::kInvalidArgument, {"-1"}, [&] { supervisor_->ReadLog(job.id, -1, 10); });
  ExpectError(ErrorCode::kNotFound, {"job-x"}, [&] { supervisor_->ReadLog("job-x", 0, 10); });
  ExpectError(ErrorCode::kNotFound, {"job-x"}, [&] { supervisor_->Subscribe("job-x", [] {}); });
}

TEST_F(JobSupervisorTest, EventsCanBeReadAsLines) {
  Script({R"(echo '{"kind":"message","message":"hello"}' > "$3/events.jsonl")", kSucceed});
  StartSupervisor();
  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);

  const JobLog events = supervisor_->ReadEvents(job.id, 0, 4096);

  ASSERT_EQ(events.lines.lines.size(), 1u);
  EXPECT_EQ(events.lines.lines[0].text, R"({"kind":"message","message":"hello"})");
}

TEST_F(JobSupervisorTest, ChildInheritsNoDescriptorsKeysOrSession) {
  Script({R"(for fd in /proc/$$/fd/*; do readlink $fd; done > "$3/descriptors")",
          R"(env > "$3/environment"; cat > "$3/stdin")",
          R"(cut -d ' ' -f 5,6 "/proc/$$/stat" > "$3/group"; echo $$ > "$3/pid")", kSucceed});
  WriteFile(dir_ / "secret", "");
  const UniqueFd leaky(::open((dir_ / "secret").c_str(), O_RDONLY));  // without O_CLOEXEC
  ::setenv("TANDEM_ADMIN_KEY", "hunter2", 1);
  ::setenv("TANDEM_FORCE_ISA", "reference", 1);
  StartSupervisor();

  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);
  ::unsetenv("TANDEM_ADMIN_KEY");
  ::unsetenv("TANDEM_FORCE_ISA");

  const std::string descriptors = FileText(job.dir / "descriptors");
  EXPECT_EQ(descriptors.find("secret"), std::string::npos) << descriptors;
  EXPECT_EQ(descriptors.find("tandem.db"), std::string::npos) << descriptors;
  EXPECT_EQ(descriptors.find("data/lock"), std::string::npos) << descriptors;
  EXPECT_NE(descriptors.find("run.lock"), std::string::npos) << descriptors;
  const std::string environment = FileText(job.dir / "environment");
  EXPECT_EQ(environment.find("hunter2"), std::string::npos);
  EXPECT_NE(environment.find("TANDEM_FORCE_ISA=reference"), std::string::npos);
  EXPECT_EQ(FileText(job.dir / "stdin"), "");
  std::string pid = FileText(job.dir / "pid");
  pid.pop_back();
  EXPECT_EQ(FileText(job.dir / "group"), pid + " " + pid + "\n") << "process group, session";
}

TEST_F(JobSupervisorTest, ChildStartsWithDefaultSignalHandling) {
  // Not a shell script: shells change the signal mask.
  WriteFile(dir_ / "script", R"(#!/usr/bin/awk -f
BEGIN {
  while ((getline line < "/proc/self/status") > 0)
    if (line ~ /^Sig(Blk|Ign)/) print line > (ARGV[3] "/signals")
  print "{\"status\":\"succeeded\"}" > (ARGV[3] "/result.json")
  exit 0
}
)");
  std::filesystem::permissions(dir_ / "script", std::filesystem::perms::owner_all);
  const auto old_handler = ::signal(SIGPIPE, SIG_IGN);
  sigset_t terminate;
  sigset_t old_mask;
  ::sigemptyset(&terminate);
  ::sigaddset(&terminate, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &terminate, &old_mask);
  StartSupervisor();  // its thread inherits the mask

  const Job job = WaitForEndOf(Submit(), JobStatus::kSucceeded);
  ::pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  ::signal(SIGPIPE, old_handler);

  // "SigBlk:\t<hex>\nSigIgn:\t<hex>\n"; signals above 31 belong to the C library.
  const std::string signals = FileText(job.dir / "signals");
  for (const char* name : {"SigBlk:\t", "SigIgn:\t"}) {
    const size_t at = signals.find(name);
    ASSERT_NE(at, std::string::npos) << signals;
    EXPECT_EQ(std::stoull(signals.substr(at + 8), nullptr, 16) & 0x7FFFFFFF, 0u) << signals;
  }
}

}  // namespace
}  // namespace tandem::server
