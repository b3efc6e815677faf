#include "engine/base/progress.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tandem {
namespace {

struct SeenState {
  uint64_t task = 0;
  std::string phase, unit;
  int64_t done = 0, total = 0;
  bool is_finished = false;
};

class RecordingSink : public ProgressSink {
 public:
  void Show(const ProgressState& state) noexcept override {
    const std::lock_guard lock(mutex_);
    seen_.push_back({state.task, std::string(state.phase), std::string(state.unit), state.done,
                     state.total, state.is_finished});
  }
  std::vector<SeenState> seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  std::mutex mutex_;
  std::vector<SeenState> seen_;
};

class ProgressTaskTest : public testing::Test {
 protected:
  ProgressTaskTest() { SetProgressSink(sink_); }
  ~ProgressTaskTest() override { SetProgressSink(nullptr); }

  const std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
};

TEST_F(ProgressTaskTest, ShowsItsBeginningAndItsEnd) {
  {
    ProgressTask task("packing", "bytes", 100, 20);
    task.Add(30);
    task.Reach(60);
    task.SetTotal(90);
  }

  const std::vector<SeenState> seen = sink_->seen();
  ASSERT_GE(seen.size(), 2u);
  EXPECT_EQ(seen.front().phase, "packing");
  EXPECT_EQ(seen.front().unit, "bytes");
  EXPECT_EQ(seen.front().done, 20);
  EXPECT_EQ(seen.front().total, 100);
  EXPECT_FALSE(seen.front().is_finished);
  EXPECT_EQ(seen.back().done, 60);
  EXPECT_EQ(seen.back().total, 90);
  EXPECT_TRUE(seen.back().is_finished);
}

TEST_F(ProgressTaskTest, CountsWhatSeveralThreadsAdd) {
  constexpr int kThreads = 4, kAdds = 10'000;
  {
    ProgressTask task("counting", "rows", kThreads * kAdds);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < kAdds; ++n) task.Add(1);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  EXPECT_EQ(sink_->seen().back().done, kThreads * kAdds);
}

TEST_F(ProgressTaskTest, ShowsAtMostTenStatesPerSecondBesidesTheFirstAndTheLast) {
  const auto begin = std::chrono::steady_clock::now();
  {
    ProgressTask task("spinning", "turns", 0);
    for (int i = 0; i < 2'000'000; ++i) task.Add(1);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;

  EXPECT_LE(static_cast<double>(sink_->seen().size()), 2 + took.count() * 10 + 1);
}

TEST_F(ProgressTaskTest, TasksDifferByNumber) {
  { const ProgressTask outer("outer", "steps", 1), inner("inner", "steps", 1); }

  const std::vector<SeenState> seen = sink_->seen();
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_LT(seen[0].task, seen[1].task);
  EXPECT_EQ(seen[2].task, seen[1].task);
  EXPECT_EQ(seen[3].task, seen[0].task);
}

TEST_F(ProgressTaskTest, ATaskKeepsTheSinkThatItFound) {
  {
    ProgressTask task("long", "steps", 2);
    SetProgressSink(nullptr);
    const ProgressTask unseen("later", "steps", 2);
    task.Reach(2);
  }

  EXPECT_TRUE(sink_->seen().back().is_finished);
  for (const SeenState& state : sink_->seen()) EXPECT_EQ(state.phase, "long");
}

}  // namespace
}  // namespace tandem
