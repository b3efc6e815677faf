// Checkpoints in two places: a local directory every few steps, storage less often.

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/attempt.h"
#include "tests/training/dist/ranks_run.h"
#include "training/run/shared_files.h"

namespace tandem::training {
namespace {

class LocalCheckpointTest : public RanksRunTest {
 protected:
  TrainSpec LocalSpec(std::vector<std::string> more = {}) const {
    for (const std::string& word :
         {"local_checkpoint_directory=" + (dir_.path() / "ram").string(),
          std::string("local_checkpoint_period=2"), std::string("run_name=near")}) {
      more.push_back(word);
    }
    return Spec(more);
  }

  // Ends all ranks after this step without a save, as a kill does.
  void Break(int ranks, const TrainSpec& spec, int64_t step) {
    EXPECT_TRUE(ErrorOf([&] {
      RunOn(ranks, spec, "near", [&](const ProgressEvent& event) {
        if (event.kind == std::string("step") && event.step == step) {
          throw Error(ErrorCode::kUnavailable, "power cut");
        }
      });
    }));
    events_.clear();
  }

  std::vector<std::string> Local() const {
    std::vector<std::string> steps;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path() / "ram")) {
      if (entry.path().filename() == "manifest.json") {
        steps.push_back(entry.path().parent_path().filename().string());
      }
    }
    return steps;
  }
};

TEST_F(LocalCheckpointTest, TheNewestOfBothPlacesIsRestored) {
  for (const int ranks : {1, 2}) {
    const std::string fsdp = "ici_fsdp_parallelism=" + std::to_string(ranks);
    const std::string whole = "whole" + std::to_string(ranks);
    RunOn(ranks, Spec({fsdp}), whole);
    std::filesystem::remove_all(dir_.path() / "near");
    events_.clear();
    // Storage has step 4 at most; the local place has step 2, then nothing.
    const TrainSpec spec = LocalSpec({fsdp, "checkpoint.period=4", "checkpoint.async=false"});
    Break(ranks, spec, 3);
    EXPECT_EQ(Local(), std::vector<std::string>{"000000000002"});
    Break(ranks, spec, 5);
    EXPECT_EQ(CountEvents("message", "resumed"), 0) << "events are of the broken run";
    EXPECT_EQ(Local(), std::vector<std::string>()) << "storage has a newer one";
    RunOn(ranks, spec, "near");
    EXPECT_EQ(CountEvents("message", "resumed after step 4"), 1);
    EXPECT_EQ(Losses("near"), Losses(whole));
    EXPECT_EQ(Weights("near"), Weights(whole));
    std::filesystem::remove_all(dir_.path() / "ram");
  }
}

TEST_F(LocalCheckpointTest, ARunThatBeginsAnewIgnoresThoseOfADeletedOne) {
  const TrainSpec spec = LocalSpec();
  Break(1, spec, 3);
  std::filesystem::remove_all(dir_.path() / "near");
  RunOn(1, spec, "near");
  EXPECT_EQ(CountEvents("message", "resumed"), 0);
}

TEST_F(LocalCheckpointTest, BothKeysAreNeeded) {
  for (const char* word : {"local_checkpoint_period=2", "local_checkpoint_directory=/tmp"}) {
    const auto error = ErrorOf([&] { Spec({word}); });
    ASSERT_TRUE(error) << word;
    EXPECT_NE(std::string(error->what()).find("checkpoint.local_period"), std::string::npos);
  }
}

// On several hosts a local directory exists on one of them only. All ranks say so before a tensor
// moves, and go on together.
TEST_F(LocalCheckpointTest, ADirectoryThatARankLacksIsRefusedByItsKey) {
  TrainSpec spec = LocalSpec({"ici_fsdp_parallelism=2"});
  spec.step_shape = StepShape{2, 4, 2, 2};
  MustWorkOnRanks(2, [&](Collectives& ranks) {
    ranks.Arrange(2);
    RunParts parts(spec, {}, &ranks);
    InitialWeights(parts);
    parts.trainer.MastersChanged();
    SharedFiles files(parts, true, "checkpoint.local_directory");
    const auto error = ErrorOf({ErrorCode::kIo}, [&] {
      files.WriteAll([&](const SharedFiles::Write& write) { write(dir_.path() / "absent"); });
    });
    EXPECT_EQ(error.has_value(), ranks.is_first());
    if (error) {
      EXPECT_NE(std::string(error->what()).find("checkpoint.local_directory must be"),
                std::string::npos)
          << error->what();
    }
    std::filesystem::create_directories(dir_.path() / "there");
    size_t n = 0;
    files.WriteAll(
        [&](const SharedFiles::Write& write) { n = write(dir_.path() / "there").size(); });
    EXPECT_EQ(n, ranks.is_first() ? 2u : 0u);
  });
}

TEST(SharedFilesTest, EveryWriterGetsFilesAndEveryTensorAPlace) {
  for (const int writers : {1, 2, 3, 8}) {
    for (const int64_t most : {int64_t{1}, int64_t{100}, int64_t{1000}, INT64_MAX}) {
      const std::vector<int64_t> bytes = {90, 10, 0, 300, 5, 5, 5, 700, 40, 40, 40, 40};
      const auto files = DivideIntoFiles("model", bytes, writers, most);
      size_t next = 0;
      for (size_t i = 0; i < files.size(); ++i) {
        EXPECT_EQ(files[i].writer, static_cast<int>(i) % writers);
        ASSERT_FALSE(files[i].tensors.empty());
        int64_t all = 0;
        int64_t largest = 0;
        for (const size_t tensor : files[i].tensors) {
          EXPECT_EQ(tensor, next++);
          all += bytes[tensor];
          largest = std::max(largest, bytes[tensor]);
        }
        EXPECT_TRUE(all <= most || all == largest) << all << " of " << most;
      }
      EXPECT_EQ(next, bytes.size());
      if (most == INT64_MAX) {
        ASSERT_EQ(files.size(), 1u);
        EXPECT_EQ(files[0].name, "model.safetensors");
      } else if (most == 1) {
        EXPECT_GE(files.size(), std::min<size_t>(11, static_cast<size_t>(writers)));
      }
    }
  }
  EXPECT_TRUE(DivideIntoFiles("optim", {}, 2, 100).empty());
}

}  // namespace
}  // namespace tandem::training
