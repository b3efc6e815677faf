#include "training/checkpoint/checkpoint_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/support/checkpoint_contents.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public testing::Test {
 protected:
  CheckpointContents Contents(int64_t step) const { return contents_.Of(step); }

  std::optional<FoundCheckpoint> Newest(const CheckpointStore& store) {
    warnings_.clear();
    return store.FindNewest([this](const std::string& what) { warnings_.push_back(what); });
  }

  fs::path Dir() const { return dir_.path() / "checkpoints"; }

  static void Spoil(const fs::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-4, std::ios::end);
    stream.write("oops", 4);
  }

  tests::TemporaryDir dir_;
  const tests::SomeContents contents_{256};
  std::vector<std::string> warnings_;
};

TEST_F(Checkpoints, TheNewestIsFoundAndOldOnesGo) {
  CheckpointStore store(Dir(), 2);
  for (const int64_t step : {10, 20, 30}) store.Save(Contents(step));

  const auto found = Newest(store);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 30);
  EXPECT_EQ(found->isa_key, "reference");
  EXPECT_EQ(engine::ReadWholeFile(Dir() / "LATEST", 100), "000000000030\n");
  EXPECT_FALSE(fs::exists(Dir() / "000000000010"));
  EXPECT_TRUE(fs::exists(Dir() / "000000000020"));
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(Checkpoints, ASpoiledOneIsPassedOverLoudly) {
  CheckpointStore store(Dir(), 3);
  for (const int64_t step : {10, 20, 30}) store.Save(Contents(step));
  Spoil(Dir() / "000000000030" / "model.safetensors");
  fs::resize_file(Dir() / "000000000020" / "train_state.json", 3);

  const auto found = Newest(store);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 10);
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_NE(warnings_[0].find("000000000030"), std::string::npos);
  EXPECT_NE(warnings_[0].find("SHA-256"), std::string::npos);
}

TEST_F(Checkpoints, AMissingFileOrManifestIsPassedOver) {
  CheckpointStore store(Dir(), 3);
  for (const int64_t step : {10, 20, 30}) store.Save(Contents(step));
  fs::remove(Dir() / "000000000030" / "model.safetensors");
  fs::remove(Dir() / "000000000020" / "manifest.json");

  EXPECT_EQ(Newest(store)->step, 10);
}

TEST_F(Checkpoints, ALaterFormatIsRefusedNotSkipped) {
  CheckpointStore store(Dir(), 3);
  store.Save(Contents(10));
  const fs::path manifest = store.Save(Contents(20)) / "manifest.json";
  auto json = nlohmann::ordered_json::parse(engine::ReadWholeFile(manifest, 1 << 20));
  json["version"] = 2;
  engine::WriteFileAtomically(manifest, json.dump());

  EXPECT_THROW(Newest(store), Error);
}

TEST_F(Checkpoints, AManifestMayNotNameFilesElsewhere) {
  CheckpointStore store(Dir(), 3);
  const fs::path manifest = store.Save(Contents(10)) / "manifest.json";
  auto json = nlohmann::ordered_json::parse(engine::ReadWholeFile(manifest, 1 << 20));
  json["files"][0]["name"] = "../LATEST";
  engine::WriteFileAtomically(manifest, json.dump());

  EXPECT_FALSE(Newest(store));
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(Checkpoints, SavingAStepAgainReplacesIt) {
  CheckpointStore store(Dir(), 3);
  const fs::path dir = store.Save(Contents(10));
  CheckpointContents other = Contents(10);
  other.isa_key = "another";
  store.Save(other);
  EXPECT_EQ(Newest(store)->isa_key, "another");

  Spoil(dir / "model.safetensors");
  store.Save(Contents(10));

  EXPECT_EQ(Newest(store)->isa_key, "reference");
  EXPECT_TRUE(warnings_.empty());
  const auto n = std::distance(fs::directory_iterator(Dir()), fs::directory_iterator());
  EXPECT_EQ(n, 2) << "the step and LATEST";
}

TEST_F(Checkpoints, AReplacementThatFailsLeavesTheOldOne) {
  CheckpointStore store(Dir(), 3);
  store.Save(Contents(10));
  CheckpointContents broken = Contents(10);
  broken.isa_key = "another";
  broken.texts["no/such/directory"] = "";

  EXPECT_THROW(store.Save(broken), Error);

  EXPECT_EQ(Newest(store)->isa_key, "reference");
}

TEST_F(Checkpoints, WithoutRoomNothingIsWritten) {
  int64_t free = 0;
  CheckpointStore store(Dir(), 3, [&] { return free; });
  free = 2000;
  store.Save(Contents(10));
  free = 1000;  // the tensor has 1,024 bytes
  try {
    store.Save(Contents(20));
    ADD_FAILURE() << "was saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("only 1000 free"), std::string::npos) << error.what();
  }
  EXPECT_EQ(Newest(store)->step, 10);
  EXPECT_FALSE(fs::exists(Dir() / "000000000020"));
}

TEST_F(Checkpoints, WhatIsSetAsideIsNeitherFoundNorDeleted) {
  CheckpointStore store(Dir(), 1);
  EXPECT_TRUE(store.SetAside().empty());
  store.Save(Contents(30));

  const fs::path aside = store.SetAside();
  EXPECT_FALSE(Newest(store));
  store.Save(Contents(10));
  store.Save(Contents(20));

  EXPECT_EQ(Newest(store)->step, 20);
  EXPECT_EQ(VerifyCheckpoint(aside / "000000000030").step, 30);
  EXPECT_NE(store.SetAside(), aside);
}

TEST_F(Checkpoints, WeightsOfAnEarlierRunAreSetAsideToo) {
  const fs::path parameters = dir_.path() / "parameters";
  fs::create_directories(parameters / "step-10");
  CheckpointStore store(Dir(), 1);
  const fs::path aside = store.SetAside(parameters);
  EXPECT_TRUE(fs::exists(aside / "parameters" / "step-10"));
  EXPECT_FALSE(fs::exists(parameters));
  EXPECT_TRUE(store.SetAside(parameters).empty());
}

// A run that returns to a checkpoint reaches the same step with other weights.
TEST_F(Checkpoints, KeptWeightsAreOfTheLastPass) {
  const fs::path parameters = dir_.path() / "parameters";
  CheckpointStore store(Dir(), 1);
  store.KeepParameters(parameters, {});
  for (const char* pass : {"first", "second"}) {
    CheckpointContents contents = Contents(10);
    contents.texts["pass.txt"] = pass;
    store.Save(contents);
    store.Save(Contents(20));
    EXPECT_EQ(engine::ReadWholeFile(parameters / "step-10" / "pass.txt", 100), pass);
    store.Clear(20);
  }
}

TEST_F(Checkpoints, AFaultAfterTheSaveDoesNotUndoIt) {
  const fs::path parameters = dir_.path() / "parameters";
  CheckpointStore store(Dir(), 1);
  store.KeepParameters(parameters, {});
  std::ofstream(parameters) << "a file in its place";
  store.Save(Contents(10));
  EXPECT_EQ(store.TakeFault(), "");
  EXPECT_EQ(store.Save(Contents(20)).filename(), "000000000020");
  EXPECT_NE(store.TakeFault(), "");
  EXPECT_EQ(Newest(store)->step, 20);
  EXPECT_TRUE(fs::exists(Dir() / "000000000010")) << "its weights are nowhere else";
  fs::remove(parameters);
  store.Save(Contents(30));
  EXPECT_EQ(store.TakeFault(), "");
  EXPECT_FALSE(fs::exists(Dir() / "000000000010"));
  EXPECT_TRUE(fs::exists(parameters / "step-10"));
  EXPECT_TRUE(fs::exists(parameters / "step-20"));
}

TEST_F(Checkpoints, AFullDiskLeavesTheOldOnesAndNoLitter) {
  CheckpointStore store(Dir(), 3);
  store.Save(Contents(10));
  // A file-size limit makes a write fail as on a full disk.
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{512, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  ErrorCode code = ErrorCode::kInternal;
  try {
    store.Save(Contents(20));
  } catch (const Error& error) {
    code = error.code();
  }
  setrlimit(RLIMIT_FSIZE, &old);

  EXPECT_EQ(code, ErrorCode::kIo);
  EXPECT_EQ(Newest(store)->step, 10);
  for (const auto& entry : fs::directory_iterator(Dir())) {
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
  }
  EXPECT_NO_THROW(store.Save(Contents(20)));
}

TEST_F(Checkpoints, WhatAKilledWriterLeftIsRemoved) {
  { const CheckpointStore store(Dir(), 3); }
  fs::create_directories(Dir() / "000000000010.tmp-0123456789abcdef");
  fs::create_directories(Dir() / ".next-000000000010" / "x");
  fs::create_directories(Dir() / ".trash-000000000010" / "x");

  const CheckpointStore store(Dir(), 3);
  EXPECT_TRUE(fs::is_empty(Dir()));
  EXPECT_FALSE(Newest(store));
}

}  // namespace
}  // namespace tandem::training
