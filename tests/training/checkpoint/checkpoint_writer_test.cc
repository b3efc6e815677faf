#include "training/checkpoint/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::training {
namespace {

class CheckpointWriterTest : public testing::Test {
 protected:
  CheckpointSnapshot Snapshot(int64_t step) {
    CheckpointSnapshot snapshot;
    snapshot.contents.step = step;
    snapshot.contents.arch = "llama";
    snapshot.contents.tensor_files.push_back(
        {"optim.safetensors",
         {{"m",
           {reinterpret_cast<const std::byte*>(values_.data()), engine::DType::kF32, {256}}}}});
    EXPECT_TRUE(CopyTensors(snapshot.contents.tensor_files.back(), &snapshot.copies));
    return snapshot;
  }

  float SavedValue(const std::filesystem::path& dir) const {
    const auto file = engine::SafetensorsFile::Open(dir / "optim.safetensors");
    float value = 0;
    std::memcpy(&value, file.Find("m")->data, sizeof value);
    return value;
  }

  tests::TemporaryDir dir_;
  std::vector<float> values_ = std::vector<float>(256, 1.5f);
};

TEST_F(CheckpointWriterTest, WhatIsSavedIsTheStateWhenItWasTaken) {
  // The writer's thread asks for the free space; it waits there until the run has continued.
  std::promise<void> gone_on;
  CheckpointStore store(dir_.path() / "c", 3, [&] {
    gone_on.get_future().wait();
    return INT64_MAX;
  });
  CheckpointWriter writer(store);
  writer.Start(Snapshot(7));
  EXPECT_TRUE(writer.in_flight());
  EXPECT_FALSE(writer.Take(false)) << "it cannot be done yet";
  values_.assign(256, 2.5f);
  gone_on.set_value();

  const auto result = writer.Take(true);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->step, 7);
  EXPECT_EQ(result->failure, nullptr);
  EXPECT_EQ(VerifyCheckpoint(result->dir).step, 7);
  EXPECT_EQ(SavedValue(result->dir), 1.5f);
  EXPECT_FALSE(writer.in_flight());
  EXPECT_FALSE(writer.Take(true)) << "taken once";
}

TEST_F(CheckpointWriterTest, AFailureIsAResult) {
  int64_t free = 0;
  CheckpointStore store(dir_.path() / "c", 3, [&] { return free; });
  CheckpointWriter writer(store);
  writer.Start(Snapshot(7));

  const auto result = writer.Take(true);
  ASSERT_TRUE(result && result->failure);
  EXPECT_THROW(std::rethrow_exception(result->failure), Error);
  free = INT64_MAX;
  writer.Start(Snapshot(8));
  EXPECT_EQ(writer.Take(true)->failure, nullptr);
}

TEST_F(CheckpointWriterTest, ItsEndWaitsForTheSaveInFlight) {
  CheckpointStore store(dir_.path() / "c", 3);
  {
    CheckpointWriter writer(store);
    writer.Start(Snapshot(9));
  }
  EXPECT_EQ(VerifyCheckpoint(dir_.path() / "c" / "000000000009").step, 9);
}

}  // namespace
}  // namespace tandem::training
