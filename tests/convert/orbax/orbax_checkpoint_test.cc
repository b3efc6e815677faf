#include "convert/orbax/orbax_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "convert/orbax/tree_metadata.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/crc32c.h"
#include "engine/io/sha256.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path Fixtures() { return tests::SourceDir() / "tests/convert/orbax/fixtures"; }

std::string ReadText(const fs::path& path) { return engine::ReadWholeFile(path, 1 << 24); }

void WriteText(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string DigestOf(const OrbaxCheckpoint& checkpoint, const OrbaxCheckpoint::Leaf& leaf) {
  std::vector<std::byte> bytes(static_cast<size_t>(leaf.array->bytes()));
  checkpoint.Read(leaf, bytes);
  return engine::ToHex(engine::Sha256Of(bytes));
}

// Files that Orbax and TensorStore wrote (make_fixtures.py), byte for byte.
class Fixture : public testing::TestWithParam<const char*> {};

TEST_P(Fixture, HasEveryLeafAndEveryByte) {
  const Json expected = Json::parse(ReadText(Fixtures() / "expected.json"))[GetParam()];
  const auto checkpoint = OrbaxCheckpoint::Open(Fixtures() / GetParam());
  std::set<std::string> read;
  std::set<std::string> empty;
  for (const auto& leaf : checkpoint.leaves()) {
    if (!leaf.array) {
      empty.insert(leaf.name() + " " + leaf.value_type);
      continue;
    }
    read.insert(leaf.name());
    ASSERT_TRUE(expected.contains(leaf.name())) << leaf.name();
    const Json& wanted = expected[leaf.name()];
    EXPECT_EQ(Json(leaf.array->shape), wanted["shape"]) << leaf.name();
    EXPECT_EQ(DigestOf(checkpoint, leaf), wanted["sha256"]) << leaf.name();
  }
  EXPECT_EQ(read.size(), expected.size());
  const bool has_tree = std::string(GetParam()) != "deep";
  EXPECT_EQ(empty, has_tree ? std::set<std::string>({"empty Dict", "nothing None",
                                                     "opt_state.1 None", "opt_state.2 None"})
                            : std::set<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Orbax, Fixture,
                         testing::Values("files_zarr2", "files_zarr3", "ocdbt_zarr2", "ocdbt_zarr3",
                                         "steps", "deep"));

TEST(OrbaxCheckpoint, TheLastFinishedStepIsTaken) {
  const tests::TemporaryDir dir;
  fs::copy(Fixtures() / "steps", dir.path() / "steps", fs::copy_options::recursive);
  fs::create_directories(dir.path() / "steps/11.orbax-checkpoint-tmp-5/items");
  fs::create_directories(dir.path() / "steps/12");
  EXPECT_EQ(OrbaxCheckpoint::Open(dir.path() / "steps").item_dir(), dir.path() / "steps/10/items");
  EXPECT_EQ(OrbaxCheckpoint::Open(dir.path() / "steps/0").item_dir(), dir.path() / "steps/0/items");
}

TEST(OrbaxCheckpoint, WhatIsNoneIsRefused) {
  const tests::TemporaryDir dir;
  EXPECT_FALSE(OrbaxCheckpoint::Is(dir.path()));
  EXPECT_FALSE(OrbaxCheckpoint::Is(tests::SourceDir() / "tests/golden/gemma2-tiny"));
  EXPECT_THROW(OrbaxCheckpoint::Open(dir.path()), Error);
  EXPECT_THROW(OrbaxCheckpoint::Open(dir.path() / "absent"), Error);
}

// Reads everything, or fails with kDataLoss or kUnsupported; any other outcome is a failure.
void OpenAndRead(const fs::path& path, int* refused) {
  try {
    const auto checkpoint = OrbaxCheckpoint::Open(path);
    for (const auto& leaf : checkpoint.leaves()) {
      // A damaged shape may be huge.
      if (leaf.array && leaf.array->bytes() < 1 << 20) DigestOf(checkpoint, leaf);
    }
  } catch (const Error& error) {
    ++*refused;
    EXPECT_TRUE(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kUnsupported ||
                error.code() == ErrorCode::kNotFound)
        << error.what();
  }
}

TEST(OrbaxCheckpoint, DamagedFilesAreRefusedOrHarmless) {
  const tests::TemporaryDir dir;
  const fs::path copy = dir.path() / "copy";
  fs::copy(Fixtures() / "ocdbt_zarr3", copy, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(Fixtures() / "ocdbt_zarr3")) {
    if (!entry.is_regular_file()) continue;
    const std::string relative = fs::relative(entry.path(), Fixtures() / "ocdbt_zarr3").string();
    if (relative.starts_with("array_metadatas") || relative == "_sharding") continue;  // not read
    const std::string text = ReadText(entry.path());
    const size_t step = std::max<size_t>(1, text.size() / 50);
    int refused = 0;
    for (size_t at = 0; at < text.size(); at += step) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      WriteText(copy / relative, damaged);
      OpenAndRead(copy, &refused);
      WriteText(copy / relative, text.substr(0, at));
      OpenAndRead(copy, &refused);
    }
    WriteText(copy / relative, text);
    // Checksums detect damage in every object that has one.
    if (relative == "manifest.ocdbt") {
      EXPECT_GE(refused, static_cast<int>(2 * text.size() / step));
    }
  }
}

// Changes the metadata of the array `name` in a copy of a fixture.
void ChangeArray(const fs::path& checkpoint, const std::string& name,
                 const std::function<void(Json& metadata)>& change) {
  Json metadata = Json::parse(ReadText(checkpoint / name / "zarr.json"));
  change(metadata);
  WriteText(checkpoint / name / "zarr.json", metadata.dump());
}

const OrbaxCheckpoint::Leaf& LeafOf(const OrbaxCheckpoint& checkpoint, const std::string& name) {
  const auto found = std::find_if(checkpoint.leaves().begin(), checkpoint.leaves().end(),
                                  [&](const auto& leaf) { return leaf.name() == name; });
  EXPECT_NE(found, checkpoint.leaves().end()) << name;
  return *found;
}

std::string FaultOf(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(OrbaxCheckpoint, ALeafOfAnUnreadTypeDoesNotHideTheOthers) {
  const Json expected = Json::parse(ReadText(Fixtures() / "expected.json"))["files_zarr3"];
  for (const char* type : {"int4", "complex64"}) {
    const tests::TemporaryDir dir;
    fs::copy(Fixtures() / "files_zarr3", dir.path() / "x", fs::copy_options::recursive);
    ChangeArray(dir.path() / "x", "numpy", [&](Json& metadata) { metadata["data_type"] = type; });
    const auto checkpoint = OrbaxCheckpoint::Open(dir.path() / "x");
    EXPECT_EQ(DigestOf(checkpoint, LeafOf(checkpoint, "list.0")), expected["list.0"]["sha256"]);
    const auto& leaf = LeafOf(checkpoint, "numpy");
    EXPECT_EQ(leaf.array->type_name, type);
    const std::string fault = FaultOf([&] { DigestOf(checkpoint, leaf); });
    EXPECT_NE(fault.find("'numpy': element type '" + std::string(type)), std::string::npos)
        << fault;
  }
}

TEST(OrbaxCheckpoint, AShapeThatItsChunksCannotHoldIsRefusedBeforeMemoryIsTaken) {
  const tests::TemporaryDir dir;
  fs::copy(Fixtures() / "files_zarr3", dir.path() / "x", fs::copy_options::recursive);
  const auto claim = [&](const Json& shape, const Json& chunk) {
    ChangeArray(dir.path() / "x", "numpy", [&](Json& metadata) {
      metadata["shape"] = shape;
      metadata["chunk_grid"]["configuration"]["chunk_shape"] = chunk;
      metadata["codecs"][0]["configuration"]["chunk_shape"] = chunk;
    });
    const auto checkpoint = OrbaxCheckpoint::Open(dir.path() / "x");
    return FaultOf([&] { checkpoint.CheckStored(LeafOf(checkpoint, "numpy")); });
  };
  EXPECT_EQ(claim({2, 3}, {2, 3}), "");
  const int64_t large = int64_t{1} << 22;
  EXPECT_NE(claim({large, large}, {large, large}).find("'numpy/c/0/0': the array's shape needs "),
            std::string::npos);
  EXPECT_NE(claim({large, large}, {2, 3}).find("'numpy/c/0/1': the chunk is missing"),
            std::string::npos);
}

TEST(OrbaxCheckpoint, AStepMayHaveAPrefix) {
  const tests::TemporaryDir dir;
  fs::create_directory(dir.path() / "run");
  fs::copy(Fixtures() / "steps/0", dir.path() / "run/checkpoint_9", fs::copy_options::recursive);
  fs::copy(Fixtures() / "steps/10", dir.path() / "run/checkpoint_10", fs::copy_options::recursive);
  EXPECT_EQ(OrbaxCheckpoint::Open(dir.path() / "run").item_dir(),
            dir.path() / "run/checkpoint_10/items");
}

TEST(OrbaxCheckpoint, AnUnfinishedStepIsNamedAsOne) {
  const tests::TemporaryDir dir;
  const fs::path step = dir.path() / "run/11.orbax-checkpoint-tmp-5";
  fs::create_directories(step / "items");
  const auto fault = [](const fs::path& path) {
    return FaultOf([&] { OrbaxCheckpoint::Open(path); });
  };
  const std::string words = "unfinished Orbax checkpoint";
  EXPECT_NE(fault(dir.path() / "run").find(words), std::string::npos);
  EXPECT_NE(fault(step).find(words), std::string::npos);
  WriteText(dir.path() / "run/12/_CHECKPOINT_METADATA", "{}");
  fs::create_directories(dir.path() / "run/12/items.orbax-checkpoint-tmp-5");
  EXPECT_NE(fault(dir.path() / "run/12").find(words), std::string::npos);
}

TEST(TreeMetadata, IsReadUpToABoundOfEntries) {
  const auto text = [](size_t n) {
    std::string json = R"({"use_zarr3": true, "tree_metadata": {)";
    for (size_t i = 0; i < n; ++i) {
      json += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"key_metadata":[{"key":")" +
              std::to_string(i) + R"(","key_type":2}],"value_metadata":{"value_type":"None"}})";
    }
    return json + "}}";
  };
  const std::vector<TreeEntry> entries = ParseTreeMetadata(text(kMaxTreeEntries), "x");
  ASSERT_EQ(entries.size(), kMaxTreeEntries);
  EXPECT_EQ(entries[7].path, std::vector<std::string>{"7"});
  EXPECT_EQ(entries[7].value_type, "None");
  const std::string fault = FaultOf([&] { ParseTreeMetadata(text(kMaxTreeEntries + 1), "x"); });
  EXPECT_NE(fault.find("x: tree_metadata has more than 262144 entries"), std::string::npos)
      << fault;
}

TEST(TreeMetadata, OfAnotherShapeIsRefused) {
  const auto fault = [](const std::string& json) {
    return FaultOf([&] { ParseTreeMetadata(json, "x"); });
  };
  EXPECT_EQ(fault(R"({"tree_metadata": {}, "more": [{"tree_metadata": 1}]})"), "");
  EXPECT_NE(fault("[]").find("tree_metadata is missing or is not an object"), std::string::npos);
  EXPECT_NE(fault(R"({"tree_metadata": []})").find("tree_metadata is missing or is not an object"),
            std::string::npos);
  EXPECT_NE(fault(R"({"tree_metadata": {"a": {}}})").find("'a' has no key_metadata"),
            std::string::npos);
  EXPECT_NE(fault(R"({"tree_metadata": {"a": 1}})").find("'a' has no key_metadata"),
            std::string::npos);
  for (const char* keys :
       {"[1]", "[{}]", R"([{"key": 1}])", R"([{"key": []}])", R"([{"key": "a", "key": "b"}])"}) {
    const std::string json =
        R"({"tree_metadata": {"a": {"key_metadata": )" + std::string(keys) + "}}}";
    EXPECT_NE(fault(json).find("'a' has an invalid key"), std::string::npos) << json;
  }
}

// OCDBT objects that TensorStore would not write.
class Ocdbt : public testing::Test {
 protected:
  static std::string Varint(uint64_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
    return out + static_cast<char>(value);
  }
  static std::string Little(uint64_t value, int bytes) {
    std::string out;
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i);
    return out;
  }
  static std::string Object(const std::string& magic, const std::string& body) {
    std::string out =
        magic + Little(magic.size() + 8 + 2 + body.size() + 4, 8) + '\0' + '\0' + body;
    return out + Little(engine::Crc32c(0, std::as_bytes(std::span(out))), 4);
  }
  // A manifest of one version: its root has this height and is at the beginning of this file.
  static std::string Manifest(const std::string& file, uint64_t height, uint64_t bytes) {
    const std::string config = std::string(17, '\0') + Varint(100) + Varint(1000) + '\4' + '\0';
    const std::string files = Varint(1) + Varint(file.size()) + Varint(0) + file;
    const std::string version = Varint(1) + Varint(1) + static_cast<char>(height) + Varint(0) +
                                Varint(0) + Varint(bytes) + Varint(1) + Varint(0) + Varint(0) +
                                Little(0, 8);
    return Object("\x0c\xdb\x3a\x2a", config + files + version + Varint(0));
  }
  static std::string Node(const std::string& body) { return Object("\x0c\xdb\x20\xde", body); }
  // A leaf whose values are inside the node.
  static std::string Leaf(const std::vector<std::string>& keys, const std::string& value) {
    std::string body = std::string(1, '\0') + Varint(0) + Varint(keys.size());
    for (size_t i = 1; i < keys.size(); ++i) body += Varint(0);
    for (const std::string& key : keys) body += Varint(key.size());
    for (const std::string& key : keys) body += key;
    for (size_t i = 0; i < keys.size(); ++i) body += Varint(value.size());
    body += std::string(keys.size(), '\0');
    for (size_t i = 0; i < keys.size(); ++i) body += value;
    return Node(body);
  }

  std::string Fault() const {
    try {
      OpenOcdbt(dir_.path());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  void ExpectFault(const std::string& manifest, const std::string& node, const char* words) {
    WriteText(dir_.path() / "manifest.ocdbt", manifest);
    WriteText(dir_.path() / "d/x", node);
    EXPECT_NE(Fault().find(words), std::string::npos) << Fault();
  }

  tests::TemporaryDir dir_;
};

TEST_F(Ocdbt, ALeafOfTwoValuesIsRead) {
  const std::string leaf = Leaf({"a", "b"}, "value");
  WriteText(dir_.path() / "manifest.ocdbt", Manifest("d/x", 0, leaf.size()));
  WriteText(dir_.path() / "d/x", leaf);
  const auto values = OpenOcdbt(dir_.path());
  EXPECT_EQ(values->Keys(), (std::vector<std::string>{"a", "b"}));
  const auto found = values->Find("b");
  ASSERT_TRUE(found);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(found->bytes.data()), found->bytes.size()),
            "value");
  EXPECT_FALSE(values->Find("c"));
}

TEST_F(Ocdbt, NothingLeavesTheDirectory) {
  const std::string leaf = Leaf({"a"}, "value");
  WriteText(dir_.path() / "inside/d/x", leaf);
  WriteText(dir_.path() / "secret", leaf);
  for (const std::string& path : {std::string("../secret"), (dir_.path() / "secret").string(),
                                  std::string("d/../../secret"), std::string("d/x\0", 4)}) {
    WriteText(dir_.path() / "inside/manifest.ocdbt", Manifest(path, 0, leaf.size()));
    try {
      OpenOcdbt(dir_.path() / "inside");
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("outside the checkpoint"), std::string::npos)
          << error.what();
    }
  }
}

TEST_F(Ocdbt, TreesThatCannotBeAreRefused) {
  const std::string unordered = Leaf({"b", "a"}, "v");
  ExpectFault(Manifest("d/x", 0, unordered.size()), unordered, "not in ascending order");
  const std::string twice = Leaf({"a", "a"}, "v");
  ExpectFault(Manifest("d/x", 0, twice.size()), twice, "not in ascending order");
  const std::string leaf = Leaf({"a"}, "v");
  ExpectFault(Manifest("d/x", 3, leaf.size()), leaf, "height differs");
  ExpectFault(Manifest("d/x", 0, leaf.size() + 1), leaf, "at offset 0 of ");
  ExpectFault(Manifest("d/x", 0, leaf.size() - 1), leaf, "recorded length differs");
  ExpectFault(Manifest("d/x", 0, leaf.size()), Manifest("d/x", 0, 1).substr(0, leaf.size()),
              "magic number");
  const std::string many = Node(std::string(1, '\0') + Varint(0) + Varint(1 << 20) + "abc");
  ExpectFault(Manifest("d/x", 0, many.size()), many, "entries do not fit");
  const std::string none = Node(std::string(1, '\0') + Varint(0) + Varint(0));
  ExpectFault(Manifest("d/x", 0, none.size()), none, "is empty");
}

// A node that is its own child would make an endless walk; its height rules that out.
TEST_F(Ocdbt, ANodeIsNotItsOwnChild) {
  std::string body;
  for (int pass = 0; pass < 2; ++pass) {
    const std::string size = Varint(Node(body).size());
    body = std::string(1, '\5') + Varint(1) + Varint(3) + Varint(0) + "d/x" + Varint(1) +
           Varint(1) + Varint(0) + "k" + Varint(0) + Varint(0) + size + Varint(1) + Varint(0) +
           Varint(0);
  }
  const std::string node = Node(body);
  ExpectFault(Manifest("d/x", 5, node.size()), node, "height differs");
}

TEST(Zarr, WhatIsNotReadIsNamed) {
  const auto fault = [](int version, Json metadata) {
    try {
      ParseZarr(version, metadata.dump(), "x");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const Json two = {{"zarr_format", 2},     {"shape", {4}}, {"chunks", {2}},
                    {"dtype", "<f4"},       {"order", "C"}, {"filters", nullptr},
                    {"compressor", nullptr}};
  EXPECT_EQ(fault(2, two), "");
  const auto with = [&](const char* name, Json value) {
    Json changed = two;
    changed[name] = std::move(value);
    return fault(2, changed);
  };
  EXPECT_NE(with("order", "F").find("order"), std::string::npos);
  EXPECT_NE(with("compressor", {{"id", "blosc"}}).find("blosc"), std::string::npos);
  EXPECT_NE(with("shape", {4, 4}).find("rank"), std::string::npos);
  EXPECT_NE(with("shape", {-1}).find("must contain integers"), std::string::npos);
  EXPECT_NE(with("chunks", {0}).find("must contain integers"), std::string::npos);
  EXPECT_NE(with("zarr_format", 3).find("zarr_format"), std::string::npos);
  Json huge = two;
  huge["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
  huge["chunks"] = {1, 1};
  EXPECT_NE(fault(2, huge).find("64 TiB"), std::string::npos);
}

}  // namespace
}  // namespace tandem::convert
