#include "engine/formats/safetensors/safetensors.h"

#include <cstring>
#include <limits>
#include <map>

#include "engine/formats/safetensors/safetensors_stream.h"
#include "engine/io/sha256.h"
#include "tests/engine/formats/safetensors/safetensors_bytes.h"
#include "tests/engine/io/file_helpers.h"

namespace tandem::engine {
namespace {

SafetensorsFile Parse(const std::string& bytes) {
  return SafetensorsFile::FromBytes(std::as_bytes(std::span(bytes)), "test.safetensors");
}

std::string BytesOf(const ConstTensorView& view) {
  return {reinterpret_cast<const char*>(view.data), view.bytes()};
}

std::vector<std::byte> Bytes(size_t count, uint8_t first) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string bytes = FileOf(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I16","shape":[2],"data_offsets":[3,7]},)"
      R"("a":{"dtype":"U8","shape":[3,1],"data_offsets":[0,3]}}   )",
      "abcdefg");

  const SafetensorsFile file = Parse(bytes);

  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_NE(file.Find("a"), nullptr);
  EXPECT_EQ(file.Find("a")->shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(BytesOf(*file.Find("a")), "abc");
  EXPECT_EQ(file.Find("b")->dtype, DType::kI16);
  EXPECT_EQ(BytesOf(*file.Find("b")), "defg");  // at an odd address, which is legal
  EXPECT_EQ(file.Find("c"), nullptr);
}

TEST(Safetensors, KnowsThirteenDTypes) {
  const std::vector<std::pair<std::string, DType>> dtypes = {
      {"F64", DType::kF64},       {"F32", DType::kF32},        {"BF16", DType::kBF16},
      {"F16", DType::kF16},       {"I64", DType::kI64},        {"I32", DType::kI32},
      {"I16", DType::kI16},       {"I8", DType::kI8},          {"U8", DType::kU8},
      {"BOOL", DType::kBool},     {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
      {"F8_E8M0", DType::kF8E8M0}};
  for (const auto& [code, dtype] : dtypes) {
    const size_t size = DTypeBytes(dtype);
    const std::string bytes =
        FileOf("{\"t\":{\"dtype\":\"" + code + "\",\"shape\":[],\"data_offsets\":[0," +
                   std::to_string(size) + "]}}",
               std::string(size, 'x'));

    EXPECT_EQ(Parse(bytes).Find("t")->dtype, dtype) << code;
  }
}

TEST(Safetensors, AcceptsEmptyTensorsAndEmptyFiles) {
  const std::string bytes = FileOf(R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
                                   R"("x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                   R"("z":{"dtype":"F32","shape":[0],"data_offsets":[1,1]}})",
                                   "x");

  EXPECT_EQ(Parse(bytes).Find("e")->bytes(), 0u);
  EXPECT_EQ(Parse(bytes).Find("z")->elements(), 0);
  EXPECT_TRUE(Parse(FileOf("{}", "")).names().empty());
}

TEST(Safetensors, ViewsLiveAsLongAsAnyCopyOfTheFile) {
  const TemporaryDir dir;
  WriteFile(dir / "m", FileOf(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", "abc"));
  auto file = std::make_unique<SafetensorsFile>(SafetensorsFile::Open(dir / "m"));
  const SafetensorsFile copy = *file;
  const ConstTensorView* view = copy.Find("a");

  file.reset();
  std::filesystem::remove(dir / "m");

  EXPECT_EQ(BytesOf(*view), "abc");
}

TEST(SafetensorsWriter, WritesWhatTheReaderReadsWithTheHashOfTheFile) {
  const TemporaryDir dir;
  const auto a = Bytes(24, 1);
  const auto b = Bytes(128, 2);
  const auto c = Bytes(3, 3);
  const std::vector<NamedTensor> tensors = {
      {"c \"quoted\" é", {c.data(), DType::kU8, {3}}}, {"a", {a.data(), DType::kF64, {3}}},
      {"scalar", {a.data(), DType::kF32, {}}},         {"empty", {nullptr, DType::kF32, {0, 7}}},
      {"b", {b.data(), DType::kBF16, {8, 8}}},
  };
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"step", "1\n\"2\""}};

  const std::string hash = WriteSafetensors(dir / "m", tensors, metadata);
  const SafetensorsFile file = SafetensorsFile::Open(dir / "m");

  EXPECT_EQ(hash, ToHex(Sha256Of(file.bytes())));
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    const ConstTensorView* view = file.Find(tensor.name);
    ASSERT_NE(view, nullptr) << tensor.name;
    EXPECT_EQ(view->dtype, tensor.view.dtype);
    EXPECT_EQ(view->shape, tensor.view.shape);
    if (view->bytes() > 0) {
      EXPECT_EQ(std::memcmp(view->data, tensor.view.data, view->bytes()), 0) << tensor.name;
    }
  }
}

TEST(SafetensorsWriter, AlignsTheDataAndEveryTensorWhereSizesAllowIt) {
  const TemporaryDir dir;
  const auto bytes = Bytes(640, 0);
  const std::vector<NamedTensor> tensors = {
      {"odd bytes", {bytes.data(), DType::kI8, {7}}},
      {"a", {bytes.data(), DType::kF32, {16}}},
      {"odd floats", {bytes.data(), DType::kF32, {5}}},
      {"b", {bytes.data(), DType::kU8, {640}}},
      {"odd halves", {bytes.data(), DType::kBF16, {3}}},
      {"odd doubles", {bytes.data(), DType::kF64, {1}}},
      {"c", {bytes.data(), DType::kBF16, {32, 2}}},
  };

  WriteSafetensors(dir / "m", tensors, {});
  const SafetensorsFile file = SafetensorsFile::Open(dir / "m");

  const auto offset = [&](const std::string& name) {
    return static_cast<size_t>(file.Find(name)->data - file.bytes().data());
  };
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(offset(name) % 64, 0u) << name;
  for (const NamedTensor& tensor : tensors) {
    EXPECT_EQ(offset(tensor.name) % DTypeBytes(tensor.view.dtype), 0u) << tensor.name;
  }
  EXPECT_EQ(offset(file.names()[0]) % 64, 0u);
}

// The writer requests the bytes of each tensor in turn, into one buffer.
TEST(SafetensorsWriter, StreamsTheSameFile) {
  const TemporaryDir dir;
  const auto bytes = Bytes(640, 0);
  const std::vector<NamedTensor> tensors = {{"odd", {bytes.data(), DType::kI8, {7}}},
                                            {"a", {bytes.data() + 64, DType::kF32, {16}}},
                                            {"empty", {nullptr, DType::kF32, {0}}},
                                            {"b", {bytes.data(), DType::kU8, {640}}}};
  std::vector<NamedTensor> outlines = tensors;
  for (NamedTensor& outline : outlines) outline.view.data = nullptr;
  std::vector<std::byte> buffer;
  const auto bytes_of = [&](const NamedTensor& wanted) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const auto& t) { return t.name == wanted.name; });
    buffer.assign(found->view.data, found->view.data + found->view.bytes());
    return std::span<const std::byte>(buffer);
  };

  const std::string hash = WriteSafetensors(dir / "whole", tensors, {{"k", "v"}});

  EXPECT_EQ(WriteSafetensors(dir / "streamed", outlines, {{"k", "v"}}, bytes_of), hash);
}

TEST(SafetensorsWriter, GivesEqualBytesForAnyOrderOfTheTensors) {
  const TemporaryDir dir;
  const auto bytes = Bytes(64, 0);
  std::vector<NamedTensor> tensors = {{"a", {bytes.data(), DType::kF32, {16}}},
                                      {"b", {bytes.data(), DType::kF32, {3}}},
                                      {"c", {bytes.data(), DType::kF32, {16}}}};

  const std::string hash = WriteSafetensors(dir / "1", tensors, {});
  std::reverse(tensors.begin(), tensors.end());

  EXPECT_EQ(WriteSafetensors(dir / "2", tensors, {}), hash);
}

TEST(SafetensorsWriter, WritesNoTensorsAtAll) {
  const TemporaryDir dir;

  WriteSafetensors(dir / "m", {}, {});
  WriteSafetensors(dir / "n", {}, {{"k", "v"}});

  EXPECT_TRUE(SafetensorsFile::Open(dir / "m").names().empty());
  EXPECT_EQ(SafetensorsFile::Open(dir / "n").metadata().at("k"), "v");
}

TEST(SafetensorsWriter, RefusesToReplaceAFileOrToWriteWhatCannotBeRead) {
  const TemporaryDir dir;
  const auto bytes = Bytes(4, 0);
  const ConstTensorView view = {bytes.data(), DType::kF32, {1}};
  WriteFile(dir / "old", "kept");
  const auto write = [&](const char* name, const std::vector<NamedTensor>& tensors) {
    return [=, &dir] { WriteSafetensors(dir / name, tensors, {}); };
  };

  ExpectError(ErrorCode::kAlreadyExists, {(dir / "old").string()}, write("old", {{"a", view}}));
  ExpectError(ErrorCode::kInvalidArgument, {"'a'", "twice"},
              write("m", {{"a", view}, {"a", view}}));
  ExpectError(ErrorCode::kInvalidArgument, {"reserved"}, write("m", {{"__metadata__", view}}));
  ExpectError(ErrorCode::kInvalidArgument, {"UTF-8"}, write("m", {{"\xff", view}}));
  ExpectError(ErrorCode::kNotFound, {"none"}, write("none/m", {{"a", view}}));

  EXPECT_EQ(NamesIn(dir.path()), std::vector<std::string>{"old"});
  EXPECT_EQ(FileText(dir / "old"), "kept");
}

}  // namespace
}  // namespace tandem::engine
