// Hostile GGUF files, grouped by published faults of other readers. Each is refused with one line
// that names the file and the key or tensor. Whatever sizes a file claims, the reader neither
// crashes nor allocates for them. In the dev preset, AddressSanitizer checks every read.

#include <limits>
#include <random>

#include "engine/formats/gguf/gguf.h"
#include "engine/formats/model_dir.h"
#include "tests/engine/formats/hostile_case.h"
#include "tests/engine/io/file_helpers.h"
#include "tests/support/gguf_writer.h"

namespace tandem::engine {
namespace {

using tests::GgufString;
using tests::GgufWriter;
using tests::U32;
using tests::U64;

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

// Reads an accepted file to its last byte, and every text.
void ReadWholeGguf(const std::string& bytes) {
  // A heap copy of exactly these bytes, so that a sanitizer sees reads beyond them.
  const std::vector<std::byte> exact(
      reinterpret_cast<const std::byte*>(bytes.data()),
      reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
  const GgufFile file = GgufFile::FromBytes(exact, "test.gguf");
  volatile unsigned sum = 0;
  for (const GgufFile::Tensor& tensor : file.tensors()) {
    for (const std::byte b : tensor.data) sum = sum + std::to_integer<unsigned>(b);
  }
  const ModelDir model = ModelDir::FromBytes("test.gguf", exact);
  for (const std::string& name : model.tensor_names()) DecodeTensor(*model.FindStored(name));
  for (const char* text : {"config.json", "generation_config.json", "tokenizer_config.json",
                           "tokenizer.json", "tokenizer.model"}) {
    model.ReadText(text);
  }
}

std::string Header(uint32_t version, uint64_t tensors, uint64_t keys) {
  return "GGUF" + U32(version) + U64(tensors) + U64(keys);
}

void ExpectRefused(const std::vector<HostileCase>& cases) {
  for (const HostileCase& hostile : cases) {
    SCOPED_TRACE(hostile.what);
    std::vector<std::string> parts = hostile.message;
    parts.emplace_back("test.gguf");
    ExpectError(hostile.code, parts, [&] { ReadWholeGguf(hostile.bytes); });
  }
}

std::string OneTensor(const std::vector<uint64_t>& file_shape, uint32_t type, uint64_t offset,
                      size_t data_bytes) {
  GgufWriter writer;
  writer.Add("general.architecture", "llama");
  writer.AddTensorRaw("w", type, file_shape, offset, std::string(data_bytes, 'x'));
  return writer.Bytes();
}

std::string OneKey(const std::string& key, uint32_t type, const std::string& bytes) {
  GgufWriter writer;
  writer.AddRaw(key, type, bytes);
  return writer.Bytes();
}

TEST(HostileGguf, FilesThatAreNone) {
  ExpectRefused({
      {"cut in the version", "GGUF\3", {"version", "only 1 bytes"}},
      {"cut in the counts", "GGUF" + U32(3) + U64(0), {"number of keys"}},
      {"version 0", Header(0, 0, 0), {"version 0"}, ErrorCode::kUnsupported},
      {"version 1", Header(1, 0, 0), {"version 1", "2 and 3"}, ErrorCode::kUnsupported},
      {"version 4", Header(4, 0, 0), {"version 4"}, ErrorCode::kUnsupported},
      {"big-endian", Header(0x03000000, 0, 0), {"big-endian"}, ErrorCode::kUnsupported},
  });
}

// CVE-2024-21836, CVE-2024-23605, CVE-2025-53630, CVE-2026-27940: count times item size wraps
// before an allocation. GHSA-p5mv-gjc5-mwqv, ollama#17042: an allocation trusts a count.
TEST(HostileGguf, CountsBeyondTheFileTakeNoMemory) {
  const std::string key = GgufString("k");
  ExpectRefused({
      {"tensors", Header(3, kMax, 0), {"18446744073709551615 tensors", "limit of 100000"}},
      {"tensors that the file has no room for", Header(3, 100000, 0), {"tensor 0"}},
      {"keys", Header(3, 0, kMax), {"18446744073709551615 keys", "limit of 65536"}},
      {"keys that the file has no room for", Header(3, 0, 65536), {"key 0"}},
      {"items", OneKey("k", 9, U32(4) + U64(kMax)), {"'k'", "limit of 1048576"}},
      {"items whose bytes wrap",
       OneKey("k", 9, U32(10) + U64(uint64_t{1} << 61)),
       {"'k'", "limit"}},
      {"items that the file has no room for",
       OneKey("k", 9, U32(10) + U64(1 << 20)),
       {"'k'", "8388608"}},
      {"strings that the file has no room for",
       OneKey("k", 9, U32(8) + U64(1 << 20)),
       {"'k'", "remain"}},
  });
}

// CVE-2024-21802, CVE-2024-23496 (TALOS-2024-1913), oss-security 2026-05-15: lengths of strings.
TEST(HostileGguf, LengthsOfStrings) {
  ExpectRefused({
      {"key", Header(3, 0, 1) + U64(kMax), {"key 0", "18446744073709551615", "65536"}},
      {"key one beyond the file",
       Header(3, 0, 1) + U64(3) + "ab",
       {"key 0", "3 bytes", "only 2 bytes"}},
      {"key of nothing", Header(3, 0, 1) + U64(0), {"key 0", "empty"}},
      {"value", OneKey("k", 8, U64(kMax)), {"'k'", "18446744073709551615 bytes", "remain"}},
      {"value that wraps with its place", OneKey("k", 8, U64(kMax - 8)), {"'k'"}},
      {"value one beyond the file", OneKey("k", 8, U64(4) + "abc"), {"'k'", "only 3 bytes"}},
      {"item", OneKey("k", 9, U32(8) + U64(1) + U64(kMax)), {"'k'", "18446744073709551615 bytes"}},
      {"name of a tensor", Header(3, 1, 0) + U64(kMax), {"tensor 0"}},
      {"not UTF-8", OneKey("k\xff", 4, U32(0)), {"key 0", "UTF-8"}},
  });
}

TEST(HostileGguf, TypesOfValues) {
  ExpectRefused({
      {"unknown", OneKey("k", 13, U64(0)), {"'k'", "type 13"}},
      {"largest", OneKey("k", ~0u, U64(0)), {"'k'", "type 4294967295"}},
      {"unknown in an array", OneKey("k", 9, U32(99) + U64(1)), {"'k'", "type 99"}},
      {"arrays of arrays that end",
       OneKey("k", 9, U32(9) + U64(1) + U32(9) + U64(1)),
       {"'k'", "only 0 bytes"}},
      {"arrays of arrays without end",
       [] {
         std::string bytes;
         for (int i = 0; i < 100000; ++i) bytes += U32(9) + U64(1);
         return OneKey("k", 9, bytes);
       }(),
       {"'k'", "deeper than 4"}},
      {"items of an inner array",
       OneKey("k", 9, U32(9) + U64(1) + U32(4) + U64(kMax)),
       {"'k'", "limit of 1048576"}},
      {"an unknown type in an inner array",
       OneKey("k", 9, U32(9) + U64(1) + U32(99) + U64(1)),
       {"'k'", "type 99"}},
      {"cut", OneKey("k", 10, "abcd"), {"'k'", "only 4 bytes"}},
      {"twice",
       [] {
         GgufWriter writer;
         writer.Add("k", uint32_t{1});
         writer.Add("k", uint32_t{2});
         return writer.Bytes();
       }(),
       {"'k'", "twice"}},
  });
}

// CVE-2025-0317: division by an alignment of 0; oss-security 2026-05-15: padding wraps.
TEST(HostileGguf, Alignment) {
  for (const uint32_t alignment : {0u, 1u, 4u, 24u, 8192u, 0x80000000u, ~0u}) {
    ExpectRefused({{"alignment",
                    OneKey("general.alignment", 4, U32(alignment)),
                    {"'general.alignment'", "power of two", std::to_string(alignment)}}});
  }
  ExpectRefused({{"text", OneKey("general.alignment", 8, GgufString("32")), {"must be an integer"}},
                 {"negative", OneKey("general.alignment", 5, U32(~31u)), {"got -32"}}});
}

// CVE-2024-21825, oss-security 2026-05-15: n_dims; CVE-2026-33298: byte sizes wrap; CVE-2024-41130.
TEST(HostileGguf, ShapesOfTensors) {
  constexpr uint64_t kBig = uint64_t{1} << 62;
  ExpectRefused({
      {"no axes", OneTensor({}, 0, 0, 64), {"'w'", "0 axes"}},
      {"five axes", OneTensor({1, 1, 1, 1, 1}, 0, 0, 64), {"'w'", "5 axes"}},
      {"axes without end",
       [] { return Header(3, 1, 0) + GgufString("w") + U32(~0u); }(),
       {"'w'", "4294967295 axes"}},
      {"an axis of 0", OneTensor({0, 4}, 0, 0, 64), {"'w'", "axis of size 0"}},
      {"an axis beyond int64", OneTensor({kMax}, 0, 0, 64), {"'w'", "18446744073709551615"}},
      {"bytes that wrap", OneTensor({kBig}, 0, 0, 64), {"'w'", "overflows"}},
      {"bytes of rows that wrap",
       OneTensor({uint64_t{1} << 31, uint64_t{1} << 31}, 0, 0, 64),
       {"'w'"}},
      {"a row of half a block", OneTensor({48, 2}, 8, 0, 128), {"'w'", "48", "32", "Q8_0"}},
      {"a row of an eighth of a block", OneTensor({32, 8}, 12, 0, 256), {"'w'", "256", "Q4_K"}},
  });
}

TEST(HostileGguf, ElementsThatWrapToFew) {
  constexpr uint64_t kBig = uint64_t{1} << 62;
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{kBig, 4}, {kBig, kBig, kBig, kBig}, {kBig + 1, 4}}) {
    ExpectRefused({{"elements", OneTensor(shape, 0, 0, 64), {"'w'", "overflows"}}});
  }
}

// oss-security 2026-05-15: bounds of types, block sizes of 0.
TEST(HostileGguf, TypesOfTensors) {
  for (const auto& [type, name] :
       std::vector<std::pair<uint32_t, std::string>>{{4, "number 4"},
                                                     {5, "number 5"},
                                                     {26, "I32"},
                                                     {31, "number 31"},
                                                     {1000, "number 1000"},
                                                     {~0u, "number 4294967295"}}) {
    ExpectRefused({{"type",
                    OneTensor({256}, type, 0, 64),
                    {"'w'", name, "supported are F32"},
                    ErrorCode::kUnsupported}});
  }
}

// CVE-2026-7482 ("Bleeding Llama"), CVE-2024-39720, CVE-2024-12055, CVE-2025-0312, CVE-2025-0315:
// offsets and sizes beyond the file.
TEST(HostileGguf, PlacesOfTensors) {
  GgufWriter overlap;
  overlap.AddTensorRaw("a", 0, {16}, 0, std::string(64, 'a'));
  overlap.AddTensorRaw("b", 0, {16}, 32, std::string(64, 'b'));
  GgufWriter same;
  same.AddTensorRaw("a", 0, {8}, 0, std::string(32, 'a'));
  same.AddTensorRaw("b", 0, {8}, 0, std::string(32, 'b'));
  GgufWriter twice;
  twice.AddTensor("a", 0, {8}, std::string(32, 'a'));
  twice.AddTensor("a", 0, {8}, std::string(32, 'b'));
  const std::string honest = OneTensor({16}, 0, 0, 64);
  ExpectRefused({
      {"offset beyond the data", OneTensor({16}, 0, 96, 64), {"'w'", "at offset 96", "64 bytes"}},
      {"largest offset", OneTensor({16}, 0, kMax - 31, 64), {"'w'", "exceeds the data"}},
      {"end beyond the data", OneTensor({24}, 0, 0, 64), {"'w'", "96 bytes", "data section of 64"}},
      {"offset that is not aligned", OneTensor({4}, 0, 4, 64), {"'w'", "alignment 32"}},
      {"data that is cut",
       honest.substr(0, honest.size() - 1),
       {"'w'", "64 bytes", "data section of 63"}},
      {"no data at all", honest.substr(0, honest.size() - 64), {"'w'"}},
      {"two on the same bytes", same.Bytes(), {"'a'", "'b'", "overlaps"}},
      {"two on some of the same bytes", overlap.Bytes(), {"'a'", "'b'", "overlaps"}},
      {"one name twice", twice.Bytes(), {"'a'", "twice"}},
  });
}

TEST(HostileGguf, PartsOfASplitModel) {
  GgufWriter writer;
  writer.Add("split.count", uint32_t{3});
  ExpectRefused(
      {{"split", writer.Bytes(), {"split.count", "is 3", "files"}, ErrorCode::kUnsupported}});
}

// CVE-2024-8063: numbers that a model divides by. Families check numbers that only they read, such
// as a block_count of 0; engine/model has tests for those.
TEST(HostileGguf, NumbersOfAModel) {
  const auto with = [](const char* key, uint32_t value) {
    GgufWriter writer;
    writer.Add("general.architecture", "llama");
    for (const char* name : {"embedding_length", "feed_forward_length", "block_count",
                             "attention.head_count", "context_length"}) {
      const std::string full = std::string("llama.") + name;
      writer.Add(full, full == key ? value : 8u);
    }
    writer.AddTensor("token_embd.weight", 0, {4, 8}, std::string(128, '\0'));
    writer.AddTensor("blk.0.attn_q.weight", 0, {8, 8}, std::string(256, '\0'));
    return writer.Bytes();
  };
  ExpectRefused({
      {"no heads", with("llama.attention.head_count", 0), {"attn_q", "0 heads"}},
      {"heads that do not divide", with("llama.attention.head_count", 3), {"attn_q", "3 heads"}},
      {"heads of one", with("llama.attention.head_count", 8), {"attn_q", "even size"}},
  });
}

TEST(HostileGguf, ArchitecturesWithoutAFamily) {
  GgufWriter writer;
  writer.Add("general.architecture", "mamba");
  writer.AddTensor("token_embd.weight", 0, {4, 8}, std::string(128, '\0'));
  ExpectRefused({{"architecture",
                  writer.Bytes(),
                  {"'mamba'", "llama", "gemma3", "gpt2"},
                  ErrorCode::kUnsupported}});
}

struct Vocabulary {
  std::string model = "llama";
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "a"};
  std::vector<float> scores = {0, 0, 0, -1};
  std::vector<int32_t> types = {2, 3, 3, 1};
  std::vector<std::string> merges = {};
  std::string pre = "gpt-2";

  std::string Bytes() const {
    GgufWriter writer;
    writer.Add("general.architecture", "llama");
    writer.AddTensor("token_embd.weight", 0, {4, 8}, std::string(128, '\0'));
    for (const char* name : {"embedding_length", "feed_forward_length", "block_count",
                             "attention.head_count", "context_length"}) {
      writer.Add(std::string("llama.") + name, uint32_t{8});
    }
    writer.Add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    writer.Add("tokenizer.ggml.model", model);
    writer.Add("tokenizer.ggml.tokens", tokens);
    if (!scores.empty()) writer.Add("tokenizer.ggml.scores", scores);
    if (!types.empty()) writer.Add("tokenizer.ggml.token_type", types);
    if (model == "gpt2") {
      writer.Add("tokenizer.ggml.pre", pre);
      writer.Add("tokenizer.ggml.merges", merges);
    }
    return writer.Bytes();
  }
};

// CVE-2025-49847, CVE-2025-52566: counts and lengths of tokens in narrow types; llama.cpp#25969:
// `<0x-1>` as an index. engine/tokenizer checks the pieces themselves.
TEST(HostileGguf, Vocabularies) {
  Vocabulary few_scores, few_types, no_scores, odd_type, negative_type, odd_model, odd_pre;
  few_scores.scores.pop_back();
  few_types.types.pop_back();
  no_scores.scores.clear();
  odd_type.types[3] = 7;
  negative_type.types[3] = -1;
  odd_model.model = "rwkv";
  odd_pre.model = "gpt2";
  odd_pre.pre = "no-such";
  ExpectRefused({
      {"fewer scores than tokens", few_scores.Bytes(), {"scores", "3 items", "4 tokens"}},
      {"fewer types than tokens", few_types.Bytes(), {"token_type", "3 items", "4 tokens"}},
      {"no scores", no_scores.Bytes(), {"no key 'tokenizer.ggml.scores'"}},
      {"an unknown type", odd_type.Bytes(), {"unknown type 7", "token 3"}},
      {"a negative type", negative_type.Bytes(), {"unknown type -1"}},
      {"an unknown model",
       odd_model.Bytes(),
       {"'rwkv'", "llama, gemma4 and t5"},
       ErrorCode::kUnsupported},
      {"an unknown pattern", odd_pre.Bytes(), {"'no-such'", "llama-bpe"}, ErrorCode::kUnsupported},
  });
  Vocabulary bytes_out_of_range;
  bytes_out_of_range.tokens[3] = "<0x-1>";
  bytes_out_of_range.types[3] = 6;
  EXPECT_NO_THROW(ReadWholeGguf(bytes_out_of_range.Bytes()));
}

TEST(HostileGguf, RandomDamageIsRefusedOrHarmless) {
  const std::string honest = Vocabulary().Bytes() + std::string(64, '\0');
  ASSERT_NO_THROW(ReadWholeGguf(honest));
  const uint32_t seed = 20261121;
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = honest;
    for (uint32_t i = 0; i < 1 + random() % 4; ++i) {
      damaged[random() % damaged.size()] = static_cast<char>(random() % 2 ? random() : 0xff);
    }
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    try {
      ReadWholeGguf(damaged);
    } catch (const Error& error) {
      ASSERT_LT(std::string(error.what()).size(), 1000u) << "seed " << seed << " round " << round;
      ASSERT_NE(error.code(), ErrorCode::kInternal) << error.what();
    }
  }
}

}  // namespace
}  // namespace tandem::engine
