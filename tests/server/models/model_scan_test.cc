#include "server/models/model_scan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

class ModelScanTest : public testing::Test {
 protected:
  fs::path root() const { return dir_.path() / "root"; }
  void Write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << text;
  }
  void WriteModel(const fs::path& path) const {
    Write(path / "config.json", R"({"model_type": "some", "torch_dtype": "bfloat16"})");
    Write(path / "model.safetensors", "12345");
  }

  tests::TemporaryDir dir_;
};

TEST_F(ModelScanTest, FindsDirectoriesGgufFilesAndAdapters) {
  WriteModel("b/model");
  Write("a.gguf", "123");
  Write("c/adapter_config.json", R"({"base_model_name_or_path": "b"})");
  Write("c/adapter_model.safetensors", "1");
  Write("d/config.json", "{}");  // without weights
  Write("e/notes.txt", "no model");

  const ModelScan scan = FindModelsBelow(root());

  ASSERT_EQ(scan.models.size(), 3u);
  EXPECT_TRUE(scan.is_complete);
  EXPECT_EQ(scan.models[0].path, "a.gguf");
  EXPECT_EQ(scan.models[0].kind, FoundModel::Kind::kGguf);
  EXPECT_EQ(scan.models[0].bytes, 3);
  EXPECT_EQ(scan.models[1].path, "b/model");
  EXPECT_EQ(scan.models[1].family, "some");
  EXPECT_EQ(scan.models[1].dtype, "bfloat16");
  EXPECT_EQ(scan.models[1].bytes, 5);
  EXPECT_EQ(scan.models[2].kind, FoundModel::Kind::kAdapter);
  EXPECT_EQ(scan.models[2].base, "b");
}

TEST_F(ModelScanTest, NeverLeavesTheRootAndEndsInALoopOfLinks) {
  WriteModel("in");
  fs::create_directories(dir_.path() / "outside" / "secret");
  std::ofstream(dir_.path() / "outside" / "secret" / "config.json") << "{}";
  std::ofstream(dir_.path() / "outside" / "secret" / "model.safetensors") << "1";
  std::ofstream(dir_.path() / "outside" / "secret.gguf") << "1";
  fs::create_directory_symlink(dir_.path() / "outside", root() / "link");
  fs::create_directory_symlink(root(), root() / "loop");
  fs::create_symlink(dir_.path() / "outside" / "secret.gguf", root() / "secret.gguf");
  Write(".hidden/config.json", "{}");
  Write(".hidden/model.safetensors", "1");

  const ModelScan scan = FindModelsBelow(root());

  ASSERT_EQ(scan.models.size(), 1u);
  EXPECT_EQ(scan.models[0].path, "in");
  EXPECT_TRUE(scan.is_complete);
}

TEST_F(ModelScanTest, SaysWhenALimitEndsIt) {
  WriteModel("1/2/3/model");
  WriteModel("model");

  ModelScanLimits shallow;
  shallow.depth = 2;
  EXPECT_EQ(FindModelsBelow(root(), shallow).models.size(), 1u);
  EXPECT_FALSE(FindModelsBelow(root(), shallow).is_complete);
  ModelScanLimits one;
  one.models = 1;
  EXPECT_EQ(FindModelsBelow(root(), one).models.size(), 1u);
  EXPECT_FALSE(FindModelsBelow(root(), one).is_complete);
  ModelScanLimits few;
  few.entries = 3;
  EXPECT_FALSE(FindModelsBelow(root(), few).is_complete);
}

TEST_F(ModelScanTest, SurvivesUnusableConfigurations) {
  Write("a/config.json", "{");
  Write("a/model.safetensors", "");
  Write("b/config.json", std::string(2 << 20, ' '));
  Write("b/model.safetensors", "");
  Write("c/config.json", R"({"model_type": 7, "torch_dtype": ")" + std::string(500, 'x') + "\"}");
  Write("c/model.safetensors", "");

  const ModelScan scan = FindModelsBelow(root());

  ASSERT_EQ(scan.models.size(), 3u);
  EXPECT_EQ(scan.models[0].family, "");
  EXPECT_EQ(scan.models[1].family, "");
  EXPECT_EQ(scan.models[2].family, "");
  EXPECT_EQ(scan.models[2].dtype.size(), 120u);
  EXPECT_TRUE(FindModelsBelow(dir_.path() / "missing").models.empty());
}

}  // namespace
}  // namespace tandem::server
