// Hostile files: each is refused with one line that names the file and the field. Whatever sizes a
// file claims, the reader neither crashes nor allocates for them. In the dev preset,
// AddressSanitizer checks every read.

#include <random>

#include "engine/formats/safetensors/safetensors.h"
#include "tests/engine/formats/hostile_case.h"
#include "tests/engine/formats/safetensors/safetensors_bytes.h"
#include "tests/engine/io/file_helpers.h"

namespace tandem::engine {
namespace {

void ReadWholeSafetensors(const std::string& bytes) {
  // A heap copy of exactly these bytes, so that a sanitizer sees reads beyond them.
  const std::vector<std::byte> exact(
      reinterpret_cast<const std::byte*>(bytes.data()),
      reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
  const SafetensorsFile file = SafetensorsFile::FromBytes(exact, "test.safetensors");
  // An accepted file is readable to its last byte.
  volatile unsigned sum = 0;
  for (const std::string& name : file.names()) {
    const ConstTensorView& view = *file.Find(name);
    for (size_t i = 0; i < view.bytes(); ++i) sum = sum + std::to_integer<unsigned>(view.data[i]);
  }
}

std::string Tensor(const std::string& fields) { return FileOf("{\"w\":{" + fields + "}}", "abcd"); }

std::string Shape(const std::string& shape) {
  return Tensor(R"("dtype":"U8","shape":)" + shape + R"(,"data_offsets":[0,4])");
}

std::string Offsets(const std::string& offsets) {
  return Tensor(R"("dtype":"U8","shape":[4],"data_offsets":)" + offsets);
}

// Two U8 tensors with these ranges of 8 bytes of data.
std::string Pair(int begin_a, int end_a, int begin_b, int end_b) {
  const auto entry = [](const char* name, int begin, int end) {
    return "\"" + std::string(name) + "\":{\"dtype\":\"U8\",\"shape\":[" +
           std::to_string(end - begin) + "],\"data_offsets\":[" + std::to_string(begin) + "," +
           std::to_string(end) + "]}";
  };
  return FileOf("{" + entry("first", begin_a, end_a) + "," + entry("second", begin_b, end_b) + "}",
                "abcdefgh");
}

std::vector<HostileCase> HostileCases() {
  const std::string good = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";
  std::string many_dims = "[1";
  for (int i = 0; i < 100000; ++i) many_dims += ",1";
  std::string deep = "{\"w\":";
  for (int i = 0; i < 100000; ++i) deep += "[";
  return {
      {"no bytes", "", {"too short"}},
      {"half a length", std::string(7, '\0'), {"7 bytes", "too short"}},
      {"no header", LengthField(0), {"does not begin with '{'"}},
      {"length one beyond the file", LengthField(3) + "{}", {"header length 3", "10 bytes"}},
      {"largest length", LengthField(~uint64_t{0}) + "{}", {"18446744073709551615"}},
      {"length that wraps with its field", LengthField(~uint64_t{0} - 7) + "{}", {"header length"}},
      {"length beyond int64", LengthField(uint64_t{1} << 63) + "{}", {"header length"}},
      {"length beyond the limit",
       LengthField((100 << 20) + 1) + std::string((100 << 20) + 1, ' '),
       {"header length 104857601", "limit of 104857600"}},
      {"header that is not JSON", FileOf("{not json}", ""), {"at byte 3"}},
      {"header that is an array", FileOf("[]", ""), {"does not begin with '{'"}},
      {"header after a space", FileOf(" {}", ""), {"does not begin with '{'"}},
      {"header with trailing text", FileOf("{}{}", ""), {"at byte 3"}},
      {"header with text behind NUL", FileOf(std::string("{}\0{}", 5), ""), {"control character"}},
      {"deep nesting", FileOf(deep, ""), {"nesting deeper than 3 levels"}},
      {"deep objects", FileOf(R"({"w":{"shape":{"a":{}}}})", ""), {"nesting deeper"}},
      {"not UTF-8", FileOf("{\"\xff\":{}}", ""), {"UTF-8"}},
      {"tensor that is a number", FileOf(R"({"w":1})", ""), {"'w' must be an object"}},
      {"tensor that is a string", FileOf(R"({"w":"x"})", ""), {"'w' must be an object"}},
      {"tensor that is null", FileOf(R"({"w":null})", ""), {"'w' must be an object"}},
      {"tensor that is an array", FileOf(R"({"w":[]})", ""), {"'w'", "unexpected array"}},
      {"empty tensor entry", FileOf(R"({"w":{}})", ""), {"'w'", "missing dtype"}},
      {"no dtype", Tensor(R"("shape":[4],"data_offsets":[0,4])"), {"'w'", "missing dtype"}},
      {"no shape", Tensor(R"("dtype":"U8","data_offsets":[0,4])"), {"'w'", "missing shape"}},
      {"no offsets", Tensor(R"("dtype":"U8","shape":[4])"), {"'w'", "missing data_offsets"}},
      {"unknown field", Tensor(good + R"(,"stride":[1])"), {"'w'", "unknown field 'stride'"}},
      {"dtype twice", Tensor(good + R"(,"dtype":"I8")"), {"'w'", "duplicate dtype"}},
      {"shape twice", Tensor(good + R"(,"shape":[4])"), {"'w'", "duplicate shape"}},
      {"offsets twice", Tensor(good + R"(,"data_offsets":[0,4])"), {"'w'", "duplicate data_off"}},
      {"dtype that is a number",
       Tensor(R"("dtype":8,"shape":[4],"data_offsets":[0,4])"),
       {"'w'", "unexpected number"}},
      {"dtype that is an array",
       Tensor(R"("dtype":["U8"],"shape":[4],"data_offsets":[0,4])"),
       {"'w'", "unexpected array"}},
      {"unsupported dtype",
       Tensor(R"("dtype":"F4","shape":[4],"data_offsets":[0,4])"),
       {"'w'", "unsupported dtype 'F4'"},
       ErrorCode::kUnsupported},
      {"dtype in lower case",
       Tensor(R"("dtype":"u8","shape":[4],"data_offsets":[0,4])"),
       {"'w'", "unsupported dtype 'u8'"},
       ErrorCode::kUnsupported},
      {"shape that is a number", Shape("4"), {"'w'", "unexpected number"}},
      {"shape of strings", Shape(R"(["4"])"), {"'w'", "unexpected string"}},
      {"shape of booleans", Shape("[true]"), {"'w'", "boolean"}},
      {"shape of null", Shape("[null]"), {"'w'", "null"}},
      {"shape in a shape", Shape("[[4]]"), {"nesting deeper than 3"}},
      {"fractional dim", Shape("[4.0]"), {"'w'", "not an integer in shape"}},
      {"negative dim", Shape("[-4]"), {"'w'", "negative number -4 in shape"}},
      {"two negative dims", Shape("[-2,-2]"), {"'w'", "negative"}},
      {"dim beyond int64", Shape("[9223372036854775808]"), {"'w'", "9223372036854775808"}},
      {"dim beyond uint64", Shape("[18446744073709551620]"), {"'w'", "shape"}},
      {"too many dims", Shape(many_dims + "]"), {"'w'", "more than 32"}},
      {"dims whose product wraps to 0", Shape("[4611686018427387904,8]"), {"'w'", "overflows"}},
      {"dims whose product wraps to 4", Shape("[4611686018427387905,4]"), {"'w'", "overflows"}},
      {"dims that overflow behind a 0", Shape("[0,4611686018427387904,8]"), {"'w'", "overflows"}},
      {"dims that overflow before a 0", Shape("[4611686018427387904,8,0]"), {"'w'", "overflows"}},
      {"elements that fit and bytes that do not",
       Tensor(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,4])"),
       {"'w'", "overflows"}},
      {"shape larger than its data", Shape("[5]"), {"'w'", "[0, 4]", "5 bytes"}},
      {"shape smaller than its data", Shape("[3]"), {"'w'", "3 bytes"}},
      {"offsets empty", Offsets("[]"), {"'w'", "data_offsets must have two"}},
      {"one offset", Offsets("[0]"), {"'w'", "data_offsets must have two"}},
      {"three offsets", Offsets("[0,4,4]"), {"'w'", "data_offsets must have two"}},
      {"offsets backwards", Offsets("[4,0]"), {"'w'", "backwards"}},
      {"negative offset", Offsets("[-4,0]"), {"'w'", "negative number -4 in data_offsets"}},
      {"end beyond the file", Offsets("[0,5]"), {"'w'", "[0, 5]", "data of 4 bytes"}},
      {"both beyond the file", Offsets("[100,104]"), {"'w'", "exceed"}},
      {"end at the edge of int64",
       Offsets("[9223372036854775803,9223372036854775807]"),
       {"'w'", "exceed"}},
      {"end beyond int64", Offsets("[0,9223372036854775808]"), {"'w'", "out of range"}},
      {"overlap", Pair(0, 5, 4, 8), {"'second'", "overlaps"}},
      {"the same bytes twice", Pair(0, 8, 0, 8), {"'second'", "overlaps"}},
      {"one inside the other", Pair(0, 8, 2, 4), {"'second'", "overlaps"}},
      {"empty inside another", Pair(0, 8, 4, 4), {"'second'", "overlaps"}},
      {"hole", Pair(0, 3, 4, 8), {"'second'", "hole"}},
      {"hole at the start", Pair(1, 4, 4, 8), {"'first'", "hole"}},
      {"data that belongs to none", Pair(0, 4, 4, 7), {"cover 7 of 8"}},
      {"data without tensors", FileOf("{}", "x"), {"cover 0 of 1"}},
      {"tensor twice",
       FileOf("{\"w\":{" + good + "},\"w\":{" + good + "}}", "abcd"),
       {"duplicate name 'w'"}},
      {"tensor twice by escape",
       FileOf("{\"w\":{" + good + "},\"\\u0077\":{" + good + "}}", "abcd"),
       {"duplicate name 'w'"}},
      {"metadata twice",
       FileOf(R"({"__metadata__":{},"__metadata__":{}})", ""),
       {"duplicate name '__metadata__'"}},
      {"metadata name twice",
       FileOf(R"({"__metadata__":{"a":"1","a":"2"}})", ""),
       {"duplicate name 'a'"}},
      {"metadata number", FileOf(R"({"__metadata__":{"a":1}})", ""), {"__metadata__", "'a'"}},
      {"metadata object", FileOf(R"({"__metadata__":{"a":{}}})", ""), {"__metadata__", "'a'"}},
      {"metadata array", FileOf(R"({"__metadata__":{"a":["b"]}})", ""), {"__metadata__"}},
      {"metadata that is an array", FileOf(R"({"__metadata__":[]})", ""), {"__metadata__"}},
      {"metadata that is a string", FileOf(R"({"__metadata__":"x"})", ""), {"__metadata__"}},
      {"name with line breaks", FileOf(R"({"a\nb\u0007":1})", ""), {"'a?b?'"}},
      {"name of a megabyte",
       FileOf("{\"" + std::string(1 << 20, 'n') + "\":1}", ""),
       {"'nnn", "…'"}},
  };
}

TEST(HostileSafetensors, EachIsRefusedNamingFileAndField) {
  for (const HostileCase& hostile : HostileCases()) {
    SCOPED_TRACE(hostile.what);
    std::vector<std::string> parts = hostile.message;
    parts.push_back("test.safetensors");
    ExpectError(hostile.code, parts, [&] { ReadWholeSafetensors(hostile.bytes); });
  }
}

TEST(HostileSafetensors, EachIsRefusedFromDiskNamingThePath) {
  const TemporaryDir dir;
  for (const HostileCase& hostile : HostileCases()) {
    SCOPED_TRACE(hostile.what);
    WriteFile(dir / "m.safetensors", hostile.bytes);
    ExpectError(hostile.code, {(dir / "m.safetensors").string()},
                [&] { SafetensorsFile::Open(dir / "m.safetensors"); });
  }
}

// A valid file with every feature: metadata, three tensors, an empty one, padding.
std::string SmallValidFile() {
  return FileOf(R"({"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[2,3],)"
                R"("data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
                R"("none":{"dtype":"I64","shape":[0,9],"data_offsets":[26,26]},)"
                R"("c":{"dtype":"BOOL","shape":[1,5],"data_offsets":[26,31]}}     )",
                std::string(31, '\x5a'));
}

TEST(HostileSafetensors, MoreTensorsThanAnyModelHasAreRefused) {
  const auto file = [](size_t n) {
    std::string header = "{";
    for (size_t i = 0; i < n; ++i) {
      header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
                R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
    }
    return FileOf(header + "}", "");
  };
  constexpr size_t kLimit = size_t{1} << 18;
  EXPECT_NO_THROW(ReadWholeSafetensors(file(kLimit)));
  ExpectError(ErrorCode::kDataLoss, {"test.safetensors", "more than 262144 tensors"},
              [&] { ReadWholeSafetensors(file(kLimit + 1)); });
}

TEST(HostileSafetensors, EveryTruncationIsDataLoss) {
  const std::string whole = SmallValidFile();
  ASSERT_NO_THROW(ReadWholeSafetensors(whole));
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    ExpectError(ErrorCode::kDataLoss, {"test.safetensors"},
                [&] { ReadWholeSafetensors(whole.substr(0, size)); });
  }
  ExpectError(ErrorCode::kDataLoss, {"cover 31 of 32"}, [&] { ReadWholeSafetensors(whole + "x"); });
}

TEST(HostileSafetensors, FlippedBytesOpenOrThrowError) {
  const std::string whole = SmallValidFile();
  constexpr uint32_t kSeed = 20261120;
  std::mt19937 random(kSeed);
  int opened = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string broken = whole;
    for (unsigned flips = random() % 4 + 1; flips > 0; --flips) {
      broken[random() % broken.size()] = static_cast<char>(random());
    }
    try {
      ReadWholeSafetensors(broken);
      ++opened;
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kUnsupported)
          << "seed " << kSeed << " round " << round << ": " << error.what();
    }
  }
  EXPECT_GT(opened, 0) << "flips in the data alone must not matter";
}

// Sizes consist of digits: flipping bits in them gives the most plausible wrong files.
TEST(HostileSafetensors, ChangedDigitsOpenOrThrowError) {
  const std::string whole = SmallValidFile();
  std::vector<size_t> digits;
  for (size_t i = 8; i < whole.size(); ++i) {
    if (whole[i] >= '0' && whole[i] <= '9') digits.push_back(i);
  }
  constexpr uint32_t kSeed = 5;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 30000; ++round) {
    std::string broken = whole;
    for (unsigned changes = random() % 3 + 1; changes > 0; --changes) {
      broken[digits[random() % digits.size()]] = "0123456789-.eE,"[random() % 15];
    }
    try {
      ReadWholeSafetensors(broken);
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kUnsupported)
          << "seed " << kSeed << " round " << round << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace tandem::engine
