#include "server/jobs/job_files.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <vector>

#include "server/jobs/process_lock.h"
#include "tests/engine/io/file_helpers.h"

namespace {
std::atomic<int> flock_fails_with{0};  // an errno; 0: locks work
}

// Replaces the system's flock in this program.
extern "C" int flock(int file, int operation) noexcept {
  if (const int error_number = flock_fails_with; error_number != 0) {
    errno = error_number;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_flock, file, operation));
}

namespace tandem::server {
namespace {

using engine::FileText;
using engine::NamesIn;
using engine::TemporaryDir;
using engine::WriteFile;

constexpr size_t kPlenty = 1024 * 1024;

std::vector<std::string> Texts(const LogChunk& chunk) {
  std::vector<std::string> texts;
  for (const LogLine& line : chunk.lines) texts.push_back(line.text);
  return texts;
}

TEST(JobFiles, WrittenFileReplacesTheOldOneAndLeavesNothingBeside) {
  const TemporaryDir dir;
  WriteJobFile(dir / "spec.json", "old");

  WriteJobFile(dir / "spec.json", "new");

  EXPECT_EQ(FileText(dir / "spec.json"), "new");
  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"spec.json"});
}

TEST(JobFiles, WritingIntoAMissingDirectoryNamesIt) {
  const TemporaryDir dir;
  engine::ExpectError(ErrorCode::kIo, {"nowhere/spec.json"},
                      [&] { WriteJobFile(dir / "nowhere/spec.json", "text"); });
}

TEST(JobFiles, LockIsHeldUntilItsOwnerIsGone) {
  const TemporaryDir dir;
  {
    const auto lock = TryLockFile(dir / "lock");
    EXPECT_TRUE(lock);
    EXPECT_FALSE(TryLockFile(dir / "lock"));
  }
  EXPECT_TRUE(TryLockFile(dir / "lock"));
}

TEST(JobFiles, WithoutLocksOnlyARunDirectoryIsUsable) {
  const TemporaryDir dir;
  for (const int error_number : {ENOSYS, EOPNOTSUPP, ENOLCK}) {
    SCOPED_TRACE(error_number);
    flock_fails_with = error_number;
    EXPECT_TRUE(LockRunDirectory(dir.path()));
    engine::ExpectError(ErrorCode::kUnsupported, {"lock", "file system has no locks"},
                        [&] { TryLockFile(dir / "lock"); });
    flock_fails_with = 0;
  }
  flock_fails_with = EIO;
  engine::ExpectError(ErrorCode::kIo, {"work.lock"}, [&] { LockRunDirectory(dir.path()); });
  flock_fails_with = 0;
  const UniqueFd held = LockRunDirectory(dir.path());
  engine::ExpectError(ErrorCode::kFailedPrecondition, {"run directory", "is in use by process"},
                      [&] { LockRunDirectory(dir.path()); });
}

TEST(JobFiles, ValidUtf8KeepsCharactersAndReplacesEveryStrayByte) {
  EXPECT_EQ(ValidUtf8("plain é € 😀"), "plain é € 😀");
  EXPECT_EQ(ValidUtf8("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(ValidUtf8("\xC0\x80"), "\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(ValidUtf8("\xF4\x90\x80\x80").size(), 4 * 3u);     // beyond U+10FFFF
  EXPECT_EQ(ValidUtf8("cut \xE2\x82"), "cut \uFFFD\uFFFD");
}

TEST(JobLogLines, CarryOffsetsThatLeadToThemAgain) {
  const TemporaryDir dir;
  WriteFile(dir / "log.txt", "one\n\nthree\n");

  const LogChunk all = ReadLogLines(dir / "log.txt", 0, kPlenty, false);

  EXPECT_EQ(Texts(all), (std::vector<std::string>{"one", "", "three"}));
  EXPECT_EQ(all.lines[2].offset, 5);
  EXPECT_EQ(all.next_offset, 11);
  EXPECT_TRUE(all.at_end);
  EXPECT_EQ(Texts(ReadLogLines(dir / "log.txt", 5, kPlenty, false)),
            std::vector<std::string>{"three"});
}

TEST(JobLogLines, UnfinishedLineWaitsForItsWriter) {
  const TemporaryDir dir;
  WriteFile(dir / "log.txt", "done\nhalf a l");

  const LogChunk meanwhile = ReadLogLines(dir / "log.txt", 0, kPlenty, false);
  const LogChunk at_last = ReadLogLines(dir / "log.txt", 0, kPlenty, true);

  EXPECT_EQ(Texts(meanwhile), std::vector<std::string>{"done"});
  EXPECT_EQ(meanwhile.next_offset, 5);
  EXPECT_TRUE(meanwhile.at_end);
  EXPECT_EQ(Texts(at_last), (std::vector<std::string>{"done", "half a l"}));
}

TEST(JobLogLines, SmallPagesGiveEveryLineOnce) {
  const TemporaryDir dir;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "line " + std::to_string(i) + "\n";
  WriteFile(dir / "log.txt", text);

  std::string joined;
  int64_t offset = 0;
  for (bool end = false; !end;) {
    const LogChunk chunk = ReadLogLines(dir / "log.txt", offset, 100, false);
    ASSERT_FALSE(chunk.lines.empty());
    ASSERT_LT(chunk.next_offset - offset, 200);
    for (const LogLine& line : chunk.lines) joined += line.text + "\n";
    offset = chunk.next_offset;
    end = chunk.at_end;
  }

  EXPECT_EQ(joined, text);
}

TEST(JobLogLines, EndlessLineComesInPiecesThatKeepCharactersWhole) {
  const TemporaryDir dir;
  std::string text = "x";
  for (size_t i = 0; i < kMaxLineBytes; ++i) text += "é";
  WriteFile(dir / "log.txt", text + "\nnext\n");

  const LogChunk chunk = ReadLogLines(dir / "log.txt", 0, kPlenty, false);

  ASSERT_EQ(chunk.lines.size(), 4u);
  EXPECT_EQ(chunk.lines[0].text + chunk.lines[1].text + chunk.lines[2].text, text);
  for (const LogLine& line : chunk.lines) EXPECT_LE(line.text.size(), kMaxLineBytes);
  EXPECT_EQ(chunk.lines[3].text, "next");
}

TEST(JobLogLines, NothingToReadIsAnEmptyAnswer) {
  const TemporaryDir dir;
  WriteFile(dir / "log.txt", "one\n");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("log.txt", dir / "link");

  EXPECT_TRUE(ReadLogLines(dir / "missing", 0, kPlenty, false).at_end);
  EXPECT_EQ(ReadLogLines(dir / "log.txt", 4000, kPlenty, false).next_offset, 4000);
  EXPECT_TRUE(ReadLogLines(dir / "pipe", 0, kPlenty, false).lines.empty());
  EXPECT_TRUE(ReadLogLines(dir / "link", 0, kPlenty, false).lines.empty());
}

TEST(JobFiles, LastLogLinesAreFewAndPrintable) {
  const TemporaryDir dir;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i) + "\n\n";
  WriteFile(dir / "log.txt", text + "bad \xFF\x1B[0m byte");

  const std::string last = LastLogLines(dir / "log.txt");

  EXPECT_EQ(last, "line 96 | line 97 | line 98 | line 99 | bad \uFFFD [0m byte");
  EXPECT_EQ(LastLogLines(dir / "missing"), "");
}

TEST(JobEvents, WellFormedLinesBecomeEventsAndOthersAreIgnored) {
  const auto event = ParseProgressEvent(
      R"({"kind":"step","step":3,"total_steps":10,"value":2.5,"message":"hello"})");
  ASSERT_TRUE(event);
  EXPECT_EQ(event->kind, "step");
  EXPECT_EQ(event->step, 3);
  EXPECT_EQ(event->total_steps, 10);
  EXPECT_EQ(event->value, 2.5);
  EXPECT_EQ(event->message, "hello");

  for (const char* line : {"", "{", "[]", "7", "{\"kind\":7}", "{\"step\":1}", "\xFF", "null",
                           "{\"kind\":\"step\"} trailing"}) {
    EXPECT_FALSE(ParseProgressEvent(line)) << line;
  }
  EXPECT_FALSE(ParseProgressEvent("{\"kind\":\"x\",\"a\":" + std::string(30000, '[')));
}

TEST(JobEvents, NumbersOutOfRangeCountAsAbsentOrTheLimit) {
  const auto event = ParseProgressEvent(
      R"({"kind":"step","step":-5,"total_steps":18446744073709551615,"value":null})");

  ASSERT_TRUE(event);
  EXPECT_EQ(event->step, 0);
  EXPECT_EQ(event->total_steps, INT64_MAX);
  EXPECT_EQ(event->value, 0);
}

TEST(JobEvents, TailWaitsForTheRestOfALineAndGoesOnFromAnOffset) {
  const TemporaryDir dir;
  const std::string first = "{\"kind\":\"step\",\"step\":1}\n";
  const std::string second = "{\"kind\":\"step\",\"step\":2}\n";
  std::vector<int64_t> steps;
  const auto collect = [&](const ProgressEvent& event) { steps.push_back(event.step); };
  EventTail tail(dir / "events.jsonl", 0);

  EXPECT_FALSE(tail.Read(collect));  // no file yet
  WriteFile(dir / "events.jsonl", first + second.substr(0, 10));
  EXPECT_FALSE(tail.Read(collect));
  EXPECT_EQ(steps, std::vector<int64_t>{1});
  WriteFile(dir / "events.jsonl", first + second);
  tail.Read(collect);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2}));
  EventTail resumed(dir / "events.jsonl", static_cast<int64_t>(first.size()));
  resumed.Read(collect);

  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 2}));
  EXPECT_EQ(tail.offset(), static_cast<int64_t>(first.size() + second.size()));
}

TEST(JobFiles, WhatIsUnfinishedGoesAndNothingElse) {
  const TemporaryDir dir;
  std::filesystem::create_directories(dir / "checkpoints/0002.tmp-ab/below.tmp-cd");
  std::filesystem::create_directories(dir / "checkpoints/.trash-0001");
  std::filesystem::create_directories(dir / "elsewhere");
  std::filesystem::create_directories(dir / "job");
  WriteFile(dir / "elsewhere/a.tmp-ef", "not ours");
  std::filesystem::rename(dir / "checkpoints", dir / "job/checkpoints");
  std::filesystem::create_directory_symlink(dir / "elsewhere", dir / "job/link");
  WriteFile(dir / "job/result.json.tmp-01", "x");
  WriteFile(dir / "job/log.txt", "x");

  RemoveUnfinished(dir / "job");
  RemoveUnfinished(dir / "absent");

  EXPECT_FALSE(std::filesystem::exists(dir / "job/checkpoints/0002.tmp-ab"));
  EXPECT_FALSE(std::filesystem::exists(dir / "job/checkpoints/.trash-0001"));
  EXPECT_FALSE(std::filesystem::exists(dir / "job/result.json.tmp-01"));
  EXPECT_TRUE(std::filesystem::exists(dir / "job/checkpoints"));
  EXPECT_TRUE(std::filesystem::exists(dir / "job/log.txt"));
  EXPECT_TRUE(std::filesystem::exists(dir / "elsewhere/a.tmp-ef"));
}

// A power loss has cut the end of the file; the resumed run appends to the rest.
TEST(JobEvents, AFileShorterThanWhatWasReadIsReadAgain) {
  const TemporaryDir dir;
  const std::string line = "{\"kind\":\"step\",\"step\":1}\n";
  WriteFile(dir / "events.jsonl", line);
  std::vector<int64_t> steps;
  EventTail tail(dir / "events.jsonl", static_cast<int64_t>(3 * line.size()));

  tail.Read([&](const ProgressEvent& event) { steps.push_back(event.step); });

  EXPECT_EQ(steps, std::vector<int64_t>{1});
  EXPECT_EQ(tail.offset(), static_cast<int64_t>(line.size()));
}

TEST(JobEvents, LineOfAnyLengthIsPassedOver) {
  const TemporaryDir dir;
  for (const size_t length : {kMaxLineBytes + 1, size_t{300'000}, size_t{1'000'000}}) {
    WriteFile(dir / "events.jsonl", "{\"kind\":\"" + std::string(length, 'x') + "\"}\n" +
                                        "{\"kind\":\"step\",\"step\":9}\n");
    std::vector<int64_t> steps;
    EventTail tail(dir / "events.jsonl", 0);

    int pieces = 0;
    while (tail.Read([&](const ProgressEvent& event) { steps.push_back(event.step); })) {
      ASSERT_LT(++pieces, 10);
    }

    EXPECT_EQ(steps, std::vector<int64_t>{9}) << length;
  }
}

TEST(JobResult, SaysWhatTheChildSaid) {
  const TemporaryDir dir;
  const auto path = dir / "result.json";
  EXPECT_EQ(ReadJobResult(path).state, JobResult::State::kMissing);

  WriteFile(path, R"({"status":"succeeded","model_dir":"artifact","error":null})");
  EXPECT_EQ(ReadJobResult(path).state, JobResult::State::kSucceeded);
  EXPECT_EQ(ReadJobResult(path).result_json, R"({"model_dir":"artifact"})");

  WriteFile(path, R"({"status":"failed","error":{"message":"no such file","code":"not_found"}})");
  EXPECT_EQ(ReadJobResult(path).state, JobResult::State::kFailed);
  EXPECT_EQ(ReadJobResult(path).error.message, "no such file");
  EXPECT_EQ(ReadJobResult(path).error.code, "not_found");

  WriteFile(path, R"({"status":"failed","error":{"message":7}})");
  EXPECT_EQ(ReadJobResult(path).error.code, "failed");
  EXPECT_FALSE(ReadJobResult(path).error.message.empty());
}

TEST(JobResult, AnythingElseIsInvalidAndSaysWhy) {
  const TemporaryDir dir;
  const auto path = dir / "result.json";
  const std::string hostile[] = {"",
                                 "{\"status\":\"succ",
                                 "[1]",
                                 "{}",
                                 "{\"status\":\"won\"}",
                                 "{\"status\":\"succeeded\",\"x\":\"\xFF\"}",
                                 "{\"status\":\"succeeded\",\"x\":" + std::string(200'000, '[') +
                                     std::string(200'000, ']') + "}",
                                 std::string(2 * kMaxResultBytes, ' ')};
  for (const std::string& text : hostile) {
    WriteFile(path, text);
    const JobResult result = ReadJobResult(path);
    EXPECT_EQ(result.state, JobResult::State::kInvalid) << text.substr(0, 50);
    EXPECT_NE(result.error.message.find("result.json"), std::string::npos);
    EXPECT_EQ(result.error.code, "bad_result");
  }
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ReadJobResult(path).state, JobResult::State::kInvalid);
}

}  // namespace
}  // namespace tandem::server
