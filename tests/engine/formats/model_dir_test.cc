#include "engine/formats/model_dir.h"

#include <sys/stat.h>

#include <chrono>
#include <cstdlib>

#include "engine/formats/not_a_model.h"
#include "engine/io/sha256.h"
#include "tests/engine/io/file_helpers.h"
#include "tests/support/paths.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";

// Writes a shard with one float per named tensor.
void WriteShard(const fs::path& path, const std::vector<std::string>& names) {
  static const float kValue = 1.5f;
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back({name, {reinterpret_cast<const std::byte*>(&kValue), DType::kF32, {1}}});
  }
  fs::remove(path);
  WriteSafetensors(path, tensors, {});
}

void WriteTwoShards(const TemporaryDir& dir) {
  WriteFile(dir / "config.json", "{}");
  WriteShard(dir / "one.safetensors", {"a", "b"});
  WriteShard(dir / "two.safetensors", {"c"});
  WriteFile(dir / kIndex, R"({"metadata":{"total_size":12},"weight_map":{"c":"two.safetensors",)"
                          R"("a":"one.safetensors","b":"one.safetensors"}})");
}

// Sets a time stamp that is old enough for a memo to be trusted.
void Age(const fs::path& path, std::chrono::seconds age = std::chrono::hours(1)) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

TEST(ModelDir, OpensASingleFile) {
  const TemporaryDir dir;
  WriteFile(dir / "config.json", R"({"model_type":"llama"})");
  WriteShard(dir / "model.safetensors", {"b", "a"});

  const ModelDir model = ModelDir::Open(dir.path());

  EXPECT_EQ(model.name(), dir.path().string());
  EXPECT_EQ(model.tensor_names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(model.FindTensor("a")->bytes(), 4u);
  EXPECT_EQ(model.FindTensor("c"), nullptr);
  EXPECT_EQ(model.ReadText("config.json"), R"({"model_type":"llama"})");
  EXPECT_EQ(model.ReadText("tokenizer.json"), std::nullopt);
  ExpectError(ErrorCode::kInvalidArgument, {"'../config.json'"},
              [&] { model.ReadText("../config.json"); });
}

TEST(ModelDir, OpensTheShardsOfAnIndexAndOnlyWhatItNames) {
  const TemporaryDir dir;
  WriteTwoShards(dir);
  WriteShard(dir / "two.safetensors", {"c", "not in the index"});

  const ModelDir model = ModelDir::Open(dir.path());

  EXPECT_EQ(model.tensor_names(), (std::vector<std::string>{"a", "b", "c"}));
  for (const std::string& name : model.tensor_names()) EXPECT_NE(model.FindTensor(name), nullptr);
  EXPECT_EQ(model.FindTensor("not in the index"), nullptr);
}

TEST(ModelDir, NamesWhatIsMissing) {
  const TemporaryDir dir;
  const auto open = [&] { ModelDir::Open(dir.path()); };

  ExpectError(ErrorCode::kNotFound, {"none", "no such model directory"},
              [&] { ModelDir::Open(dir / "none"); });
  ExpectError(ErrorCode::kNotFound, {(dir / "config.json").string()}, open);
  WriteFile(dir / "config.json", "{}");
  ExpectError(ErrorCode::kNotFound, {dir.path().string(), "model.safetensors", kIndex}, open);
  WriteTwoShards(dir);
  fs::remove(dir / "two.safetensors");
  ExpectError(ErrorCode::kNotFound, {kIndex, "shard 'two.safetensors' is missing"}, open);
  WriteShard(dir / "two.safetensors", {"other"});
  ExpectError(ErrorCode::kDataLoss, {kIndex, "tensor 'c' is not in shard 'two.safetensors'"}, open);
  WriteFile(dir / "two.safetensors", "short");
  ExpectError(ErrorCode::kDataLoss, {(dir / "two.safetensors").string()}, open);
}

// Each message is one line: the path, its contents, the next step.
TEST(ModelDir, WhatIsNoModelIsRecognised) {
  const auto expect = [](const fs::path& path, const std::vector<std::string>& parts) {
    SCOPED_TRACE(path.filename());
    const std::string why = WhyNotAModel(path);
    EXPECT_TRUE(why.starts_with(path.string() + ": ")) << why;
    EXPECT_EQ(why.find('\n'), std::string::npos) << why;
    for (const std::string& part : parts) EXPECT_NE(why.find(part), std::string::npos) << why;
    EXPECT_THROW(ModelDir::Open(path), Error);
  };
  const TemporaryDir dir;
  const auto with = [&](const std::string& name, const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      fs::create_directories((dir / name / file).parent_path());
      WriteFile(dir / name / file, "{}");
    }
    return dir / name;
  };
  fs::create_directories(dir / "empty");
  expect(dir / "empty", {"an empty directory", "a Hugging Face directory"});
  expect(with("several", {"a/config.json", "b/config.json"}), {"several models ('a', 'b')"});
  expect(with("one", {"a/config.json"}), {"holds a model in 'a'; name that directory"});
  expect(with("pickles", {"config.json", "pytorch_model.bin"}),
         {"pickled weights ('pytorch_model.bin')", "safe_serialization=True"});
  expect(with("flax", {"config.json", "flax_model.msgpack"}),
         {"Flax weights in msgpack", "from_flax=True"});
  expect(with("gguf", {"m-Q4.gguf", "m-Q8.gguf"}),
         {"'m-Q4.gguf', 'm-Q8.gguf'", "name one of them"});
  expect(with("weights", {"x.safetensors"}), {"'x.safetensors' without a config.json"});
  expect(with("config", {"config.json"}), {"neither model.safetensors nor"});
  expect(with("adapter", {"adapter_config.json"}), {"an adapter", "--adapter NAME=DIR"});
  expect(with("orbax", {"step_100/_CHECKPOINT_METADATA"}),
         {"an Orbax checkpoint", "tandem convert"});
  expect(with("killed", {"100.orbax-checkpoint-tmp-5/x"}), {"an unfinished Orbax checkpoint"});
  expect(dir / "weights" / "x.safetensors", {"one file of a model", (dir / "weights").string()});
  WriteFile(dir / "model.pt", "PK\x03\x04");
  expect(dir / "model.pt", {"a pickle"});
  WriteFile(dir / "checkpoint_100", "\x81\xa6params\x80");
  expect(dir / "checkpoint_100", {"Flax msgpack file"});
  EXPECT_EQ(WhyNotAModel(dir / "none"),
            (dir / "none").string() + ": no such model directory or file");
}

TEST(ModelDir, RefusesAnIndexThatLeavesTheDirectoryOrIsNone) {
  const TemporaryDir dir;
  WriteTwoShards(dir);
  const auto refused = [&](const std::string& index, const std::vector<std::string>& parts) {
    SCOPED_TRACE(index.substr(0, 100));
    WriteFile(dir / kIndex, index);
    std::vector<std::string> all = parts;
    all.push_back((dir / kIndex).string());
    ExpectError(ErrorCode::kDataLoss, all, [&] { ModelDir::Open(dir.path()); });
  };
  for (const char* shard : {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".",
                            "", "a\\\\b", "one.safetensors\\u0000", "a\\nb"}) {
    std::string index = R"({"weight_map":{"a":")";
    index += shard;
    index += "\"}}";
    refused(index, {"'a'", "plain file name"});
  }

  refused("", {"at byte 1"});
  refused("[]", {"weight_map"});
  refused("{}", {"weight_map"});
  refused(R"({"weight_map":[]})", {"weight_map"});
  refused(R"({"weight_map":{}})", {"weight_map", "lists no tensors"});
  refused(R"({"weight_map":{"a":1}})", {"'a'"});
  refused(R"({"weight_map":{"a":null}})", {"'a'"});
  refused(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})",
          {"duplicate name 'a'"});
  refused(R"({"weight_map":{"a":"one.safetensors")", {"at byte"});
  refused(R"({"weight_map":)" + std::string(100000, '['), {"nesting deeper"});
}

TEST(ModelDir, TruncatedIndexesAreDataLoss) {
  const TemporaryDir dir;
  WriteTwoShards(dir);
  const std::string index = FileText(dir / kIndex);
  for (size_t size = 0; size < index.size(); ++size) {
    WriteFile(dir / kIndex, index.substr(0, size));
    ExpectError(ErrorCode::kDataLoss, {kIndex}, [&] { ModelDir::Open(dir.path()); });
  }
}

TEST(ModelDir, FromMemoryIsTheSameModelAsFromDisk) {
  const TemporaryDir dir;
  WriteTwoShards(dir);
  std::map<std::string, std::string> texts;
  for (const std::string& name : NamesIn(dir.path())) texts[name] = FileText(dir / name);
  std::map<std::string, std::span<const std::byte>> files;
  for (const auto& [name, text] : texts) files[name] = std::as_bytes(std::span(text));

  const ModelDir disk = ModelDir::Open(dir.path());
  const ModelDir memory = ModelDir::FromMemory("embedded", files);

  EXPECT_EQ(memory.name(), "embedded");
  EXPECT_EQ(memory.tensor_names(), disk.tensor_names());
  EXPECT_EQ(memory.ReadText("config.json"), "{}");
  EXPECT_EQ(memory.ReadText("absent.json"), std::nullopt);
  EXPECT_EQ(memory.ContentHash(""), disk.ContentHash(""));
  files.erase("two.safetensors");
  ExpectError(ErrorCode::kNotFound, {"embedded", "'two.safetensors'"},
              [&] { ModelDir::FromMemory("embedded", files); });
  files.erase("config.json");
  ExpectError(ErrorCode::kNotFound, {"embedded/config.json"},
              [&] { ModelDir::FromMemory("embedded", files); });
}

// Other programs' files: models of many families with their real headers.
TEST(ModelDir, OpensModelsWrittenByOthers) {
  const fs::path golden = tests::SourceDir() / "tests/golden";
  int opened = 0;
  for (const auto& entry : fs::directory_iterator(golden)) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    SCOPED_TRACE(entry.path());

    const ModelDir model = ModelDir::Open(entry.path());

    EXPECT_FALSE(model.tensor_names().empty());
    ++opened;
  }
  EXPECT_GT(opened, 0);
}

TEST(ContentHash, OfOneFileIsItsSha256AndChangesWithItsContent) {
  const TemporaryDir dir;
  WriteFile(dir / "config.json", "{}");
  WriteShard(dir / "model.safetensors", {"a"});
  const std::string text = FileText(dir / "model.safetensors");

  const std::string hash = ModelDir::Open(dir.path()).ContentHash("");
  WriteShard(dir / "model.safetensors", {"b"});

  EXPECT_EQ(hash, ToHex(Sha256Of(std::as_bytes(std::span(text)))));
  EXPECT_NE(ModelDir::Open(dir.path()).ContentHash(""), hash);
}

TEST(ContentHash, BelievesWhatIsKnownOfAFile) {
  const TemporaryDir dir;
  WriteTwoShards(dir);
  const ModelDir model = ModelDir::Open(dir.path());
  std::vector<Sha256Digest> digests;
  for (const char* name : {"one.safetensors", "two.safetensors"}) {
    const std::string text = FileText(dir / name);
    digests.push_back(Sha256Of(std::as_bytes(std::span(text))));
  }
  EXPECT_EQ(model.ContentHash(""), ToHex(Sha256Of(std::as_bytes(std::span(digests)))));

  // Only a reader of the digests, not of the file, can return this.
  digests[1].fill(7);
  EXPECT_EQ(model.ContentHash("", {}, {{"two.safetensors", digests[1]}, {"x", digests[0]}}),
            ToHex(Sha256Of(std::as_bytes(std::span(digests)))));
}

class ContentHashMemo : public testing::Test {
 protected:
  ContentHashMemo() {
    WriteTwoShards(dir_);
    Age(dir_ / "one.safetensors");
    Age(dir_ / "two.safetensors");
  }
  std::string Hash() { return ModelDir::Open(dir_.path()).ContentHash(memo_dir_); }
  fs::path Memo() { return memo_dir_ / NamesIn(memo_dir_).at(0); }

  TemporaryDir dir_;
  fs::path memo_dir_ = dir_ / "cache" / "deep";
};

TEST_F(ContentHashMemo, IsWrittenOnceAndThenBelieved) {
  const std::string hash = Hash();
  ASSERT_EQ(NamesIn(memo_dir_).size(), 1u);

  // Only a reader of the memo, not of the weights, can return this.
  std::string memo = FileText(Memo());
  const std::string planted(64, 'f');
  memo.replace(memo.find(hash), hash.size(), planted);
  WriteFile(Memo(), memo);

  EXPECT_EQ(Hash(), planted);
}

TEST_F(ContentHashMemo, IsNotBelievedForAFileThatChanged) {
  const std::string hash = Hash();
  WriteShard(dir_ / "two.safetensors", {"d", "c"});
  Age(dir_ / "two.safetensors");

  const std::string changed = Hash();

  EXPECT_NE(changed, hash);
  EXPECT_EQ(Hash(), changed);
}

TEST_F(ContentHashMemo, IsIgnoredWhenCorrupt) {
  const std::string hash = Hash();
  const std::string memo = FileText(Memo());
  std::string wrong_hash = memo;
  wrong_hash[wrong_hash.find(hash)] = 'Z';
  for (const std::string& corrupt :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
        std::string(R"({"version":2,"sha256":5,"files":[]})"), memo.substr(0, memo.size() / 2),
        wrong_hash, std::string(100000, '['), std::string(2 << 20, ' ')}) {
    SCOPED_TRACE(corrupt.substr(0, 40));
    WriteFile(Memo(), corrupt);

    EXPECT_EQ(Hash(), hash);
    EXPECT_EQ(FileText(Memo()), memo) << "a corrupt memo is replaced";
  }
}

TEST_F(ContentHashMemo, IsNotWrittenForFilesThatChangedAMomentAgo) {
  Age(dir_ / "two.safetensors", std::chrono::seconds(0));

  Hash();

  EXPECT_FALSE(fs::exists(memo_dir_));
}

TEST_F(ContentHashMemo, ThatCannotBeWrittenCostsOnlyTime) {
  const std::string hash = Hash();
  memo_dir_ = dir_ / "config.json" / "not a directory";

  EXPECT_EQ(Hash(), hash);
}

}  // namespace
}  // namespace tandem::engine
