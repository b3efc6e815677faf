#include "engine/base/log_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

namespace tandem {
namespace {

class LogQueueTest : public testing::Test {
 protected:
  LogQueueTest() { EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0); }
  ~LogQueueTest() override {
    queue_.reset();
    CloseWriter();
    close(ends_[0]);
  }

  LogQueue::Options OptionsOf(size_t max_bytes, std::chrono::milliseconds last_words) const {
    LogQueue::Options options;
    options.fd = ends_[1];
    options.max_bytes = max_bytes;
    options.last_words = last_words;
    options.report = [](uint64_t n) { return "dropped " + std::to_string(n) + "\n"; };
    return options;
  }

  LogQueue& Start(size_t max_bytes, std::chrono::milliseconds last_words) {
    queue_ = std::make_unique<LogQueue>(OptionsOf(max_bytes, last_words));
    return *queue_;
  }

  void CloseWriter() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }

  std::string ReadToEnd() const {
    std::string text;
    std::array<char, 4096> piece{};
    for (ssize_t n = 0; (n = read(ends_[0], piece.data(), piece.size())) > 0;) {
      text.append(piece.data(), static_cast<size_t>(n));
    }
    return text;
  }

  std::array<int, 2> ends_{-1, -1};
  std::unique_ptr<LogQueue> queue_;
};

std::string Line(int i) { return "line " + std::to_string(i) + std::string(90, '.') + "\n"; }

TEST_F(LogQueueTest, LinesArriveWholeAndInOrder) {
  LogQueue& queue = Start(1 << 20, std::chrono::seconds(60));
  std::string expected;
  for (int i = 0; i < 500; ++i) {
    queue.Push(Line(i));
    expected += Line(i);
  }
  queue_.reset();
  CloseWriter();

  EXPECT_EQ(ReadToEnd(), expected);
}

// The pipe holds 64 KiB: a log that waits for its reader would block this test forever.
TEST_F(LogQueueTest, APipeThatNobodyReadsDelaysNeitherTheLogNorTheEnd) {
  LogQueue& queue = Start(1 << 16, std::chrono::milliseconds(1));

  for (int i = 0; i < 10'000; ++i) queue.Push(Line(i));

  EXPECT_GT(queue.n_dropped(), 5'000u);
  queue_.reset();
}

TEST_F(LogQueueTest, DroppedLinesAreCountedOnceTheReaderIsBack) {
  constexpr int kLines = 10'000;
  LogQueue& queue = Start(1 << 16, std::chrono::seconds(60));
  for (int i = 0; i < kLines; ++i) queue.Push(Line(i));
  std::string text;
  std::thread reader([&] { text = ReadToEnd(); });
  EXPECT_TRUE(queue.Flush(std::chrono::seconds(60)));
  queue_.reset();
  CloseWriter();
  reader.join();

  std::istringstream lines(text);
  uint64_t n_read = 0;
  uint64_t n_reported = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("dropped ")) {
      n_reported += std::stoull(line.substr(8));
    } else {
      EXPECT_TRUE(line.starts_with("line ") && line.ends_with(".")) << line;
      ++n_read;
    }
  }
  EXPECT_GT(n_reported, 0u);
  EXPECT_EQ(n_read + n_reported, uint64_t{kLines});
}

TEST_F(LogQueueTest, AReaderThatHasGoneCostsNothing) {
  LogQueue& queue = Start(1 << 16, std::chrono::seconds(60));
  close(ends_[0]);

  for (int i = 0; i < 1'000; ++i) queue.Push(Line(i));
  EXPECT_TRUE(queue.Flush(std::chrono::seconds(60)));

  ends_[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

TEST_F(LogQueueTest, AForkedChildWritesItsLinesItself) {
  LogQueue& queue = Start(1 << 16, std::chrono::seconds(60));
  const pid_t child = fork();
  if (child == 0) {
    queue.Push("of the child\n");
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  queue.Push("of the parent\n");
  queue_.reset();
  CloseWriter();

  EXPECT_EQ(ReadToEnd(), "of the child\nof the parent\n");
}

// Without a free descriptor the pipe cannot be opened again. Neither the queue's thread nor a
// forked child may then wait for the reader.
TEST_F(LogQueueTest, APipeThatCannotBeOpenedAgainBlocksNobody) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  LogQueue::Options options = OptionsOf(1 << 16, std::chrono::milliseconds(1));
  // Nothing else may happen below the limit: sanitizers open files too.
  const int limited = setrlimit(RLIMIT_NOFILE, &none);
  auto made = std::make_unique<LogQueue>(std::move(options));
  const int restored = setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_EQ(limited, 0);
  ASSERT_EQ(restored, 0);
  queue_ = std::move(made);
  LogQueue& queue = *queue_;

  for (int i = 0; i < 10'000; ++i) queue.Push(Line(i));
  EXPECT_GT(queue.n_dropped(), 5'000u);
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 10'000; ++i) queue.Push(Line(i));
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  queue_.reset();
}

TEST_F(LogQueueTest, TheDescriptorItselfStaysBlocking) {
  Start(1 << 16, std::chrono::seconds(60));
  EXPECT_EQ(fcntl(ends_[1], F_GETFL) & O_NONBLOCK, 0);
}

}  // namespace
}  // namespace tandem
