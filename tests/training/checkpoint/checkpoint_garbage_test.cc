#include "training/checkpoint/checkpoint_garbage.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/posix_file.h"
#include "tests/support/checkpoint_contents.h"
#include "tests/support/temporary_dir.h"
#include "training/checkpoint/checkpoint_store.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class CheckpointGarbage : public testing::Test {
 protected:
  void Save(int64_t step, int64_t best_step = -1) {
    CheckpointContents contents = contents_.Of(step);
    contents.texts["train_state.json"] = "{\"best_step\": " + std::to_string(best_step) + "}";
    CheckpointStore(Dir(), 100).Save(contents);
  }
  fs::path Dir() const { return dir_.path() / "checkpoints"; }
  static std::string Step(int64_t step) {
    std::string name = std::to_string(step);
    return std::string(12 - name.size(), '0') + name;
  }
  void Spoil(int64_t step) {
    std::ofstream(Dir() / Step(step) / "model.safetensors", std::ios::app) << "more";
  }
  std::set<std::string> There() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(Dir())) {
      names.insert(entry.path().filename().string());
    }
    names.erase("LATEST");
    return names;
  }
  using Names = std::set<std::string>;

  tests::TemporaryDir dir_;
  const tests::SomeContents contents_{256};
};

TEST_F(CheckpointGarbage, OldStepsGoAndADryRunTouchesNothing) {
  for (const int64_t step : {10, 20, 30, 40}) Save(step);
  const Names before = There();

  const GarbageResult dry = CollectGarbage(dir_.path(), {.keep = 2, .dry_run = true});

  EXPECT_EQ(There(), before);
  ASSERT_EQ(dry.removed.size(), 2U);
  EXPECT_EQ(dry.removed[0].path, Dir() / Step(10));
  EXPECT_GT(dry.removed[0].bytes, 1024);
  CollectGarbage(Dir(), {.keep = 2});
  EXPECT_EQ(There(), (Names{Step(30), Step(40)}));
  EXPECT_EQ(CollectGarbage(Dir(), {.keep = 2}).removed.size(), 0U);
}

TEST_F(CheckpointGarbage, TheNewestSoundStepAndTheBestStay) {
  for (const int64_t step : {10, 20, 30, 40}) Save(step, /*best_step=*/10);
  Spoil(40);
  Spoil(30);

  const GarbageResult result = CollectGarbage(Dir(), {.keep = 1});

  EXPECT_EQ(There(), (Names{Step(10), Step(20), Step(40)}));
  EXPECT_EQ(result.kept,
            (std::vector<fs::path>{Dir() / Step(40), Dir() / Step(20), Dir() / Step(10)}));
  // Without a sound checkpoint no kept one is trusted; the newest stay nevertheless.
  Spoil(20);
  Spoil(10);
  CollectGarbage(Dir(), {.keep = 2});
  EXPECT_EQ(There(), (Names{Step(20), Step(40)}));
}

TEST_F(CheckpointGarbage, WhatKilledWritersLeftGoesAndWhatIsWrittenStays) {
  Save(10);
  for (const char* name : {".trash-000000000005", "000000000020.tmp-0123", "out.part", "mine.part",
                           "000000000030.tmp-4567", "notes"}) {
    fs::create_directory(Dir() / name);
    std::ofstream(Dir() / name / "file") << "text";
  }
  std::ofstream(Dir() / "out.part" / "conversion.json") << "{}";
  const fs::path written = Dir() / "000000000030.tmp-4567";
  const engine::FileDescriptor writer(open(written.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(flock(writer.get(), LOCK_EX | LOCK_NB), 0);

  EXPECT_EQ(CollectGarbage(Dir(), {}).removed.size(), 3U);

  EXPECT_EQ(There(), (Names{Step(10), "mine.part", "000000000030.tmp-4567", "notes"}));
}

TEST_F(CheckpointGarbage, LinksAreNotFollowed) {
  Save(10);
  Save(20);
  fs::create_directory(dir_.path() / "elsewhere");
  std::ofstream(dir_.path() / "elsewhere" / "file") << "text";
  fs::create_directory_symlink(dir_.path() / "elsewhere", Dir() / Step(5));
  fs::create_directory_symlink(dir_.path() / "elsewhere", Dir() / ".trash-x");

  CollectGarbage(Dir(), {.keep = 1});

  EXPECT_EQ(There(), (Names{Step(5), Step(20)}));
  EXPECT_TRUE(fs::exists(dir_.path() / "elsewhere" / "file"));
  try {
    CollectGarbage(dir_.path() / "nowhere", {});
    FAIL() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  }
}

}  // namespace
}  // namespace tandem::training
