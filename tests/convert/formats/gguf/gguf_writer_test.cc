// The container and the encodings of GGUF, without a model.

#include "convert/formats/gguf/gguf_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <random>

#include "convert/formats/gguf/gguf_quantize.h"
#include "engine/base/error.h"
#include "engine/io/mapped_file.h"
#include "engine/tensor/bfloat16.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {
namespace {

using engine::GgufFile;

TEST(GgufWriter, EveryTypeOfKeyIsReadBack) {
  const tests::TemporaryDir dir;
  GgufKeys keys;
  keys.Add("u8", uint8_t{200});
  keys.Add("i8", int8_t{-100});
  keys.Add("u16", uint16_t{60000});
  keys.Add("i16", int16_t{-30000});
  keys.Add("u32", uint32_t{4'000'000'000});
  keys.Add("i32", int32_t{-2'000'000'000});
  keys.Add("u64", uint64_t{1} << 40);
  keys.Add("i64", -(int64_t{1} << 40));
  keys.Add("f32", 0.5f);
  keys.Add("f64", 1e300);
  keys.Add("bool", true);
  keys.Add("text", "päivää");
  keys.Add("texts", std::vector<std::string>{"", "a", "b\nc"});
  keys.Add("flags", std::vector<bool>{true, false, true});
  keys.Add("ints", std::vector<int32_t>{-1, 2});
  keys.Add("floats", std::vector<float>{1.5f, -2.5f});
  keys.Add("bytes", std::vector<uint8_t>{0, 255});
  const std::vector<GgufTensorInfo> tensors = {{"a", {2, 3}, GgufNumbers::kF32},
                                               {"b", {5}, GgufNumbers::kF16}};
  GgufFileWriter writer(dir / "x.gguf", keys, tensors);
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  writer.Write(0, 12, std::as_bytes(std::span(a)).subspan(12));
  writer.Write(0, 0, std::as_bytes(std::span(a)).first(12));
  const std::vector<uint16_t> b = {1, 2, 3, 4, 5};
  writer.Write(1, 0, std::as_bytes(std::span(b)));
  writer.Finish();

  const auto mapped = engine::MappedFile::Open(dir / "x.gguf");
  const GgufFile file = GgufFile::FromBytes(mapped->bytes(), "x");
  EXPECT_EQ(file.Int("u8"), 200);
  EXPECT_EQ(file.Int("i8"), -100);
  EXPECT_EQ(file.Int("u16"), 60000);
  EXPECT_EQ(file.Int("i16"), -30000);
  EXPECT_EQ(file.Int("u32"), 4'000'000'000);
  EXPECT_EQ(file.Int("i32"), -2'000'000'000);
  EXPECT_EQ(file.Int("u64"), int64_t{1} << 40);
  EXPECT_EQ(file.Int("i64"), -(int64_t{1} << 40));
  EXPECT_EQ(file.Number("f32"), 0.5);
  EXPECT_EQ(file.Number("f64"), 1e300);
  EXPECT_EQ(file.Bool("bool"), true);
  EXPECT_EQ(file.String("text"), "päivää");
  EXPECT_EQ(file.Strings("texts"), (std::vector<std::string_view>{"", "a", "b\nc"}));
  EXPECT_EQ(file.Ints("flags"), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(file.Ints("ints"), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(file.Floats("floats"), (std::vector<float>{1.5f, -2.5f}));
  EXPECT_EQ(file.Bytes("bytes"), std::string_view("\0\xff", 2));
  ASSERT_NE(file.Find("a"), nullptr);
  EXPECT_EQ(file.Find("a")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(std::ranges::equal(file.Find("a")->data, std::as_bytes(std::span(a))));
  EXPECT_TRUE(std::ranges::equal(file.Find("b")->data, std::as_bytes(std::span(b))));
  // Both tensors begin on the file's alignment.
  EXPECT_EQ((file.Find("b")->data.data() - mapped->bytes().data()) % kGgufAlignment, 0);
}

TEST(GgufWriter, WhatNobodyCouldReadIsRefusedNamingTheKey) {
  GgufKeys keys;
  const auto refused = [&](const std::function<void()>& add) {
    try {
      add();
    } catch (const Error& error) {
      return error.code() == ErrorCode::kUnsupported &&
             std::string(error.what()).find("'long'") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused([&] { keys.Add("long", std::string(GgufFile::kMaxStringBytes + 1, 'x')); }));
  EXPECT_TRUE(
      refused([&] { keys.Add("long", std::vector<int32_t>(GgufFile::kMaxArrayItems + 1)); }));
}

TEST(GgufWriter, AFullDiskShowsBeforeAnythingIsComputed) {
  const tests::TemporaryDir dir;
  const std::vector<GgufTensorInfo> tensors = {{"a", {1024, 1024}, GgufNumbers::kF32}};
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1 << 20, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  try {
    GgufFileWriter(dir / "x.gguf", GgufKeys(), tensors);
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("x.gguf"), std::string::npos) << error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
}

std::vector<float> RandomValues(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(random() % 20001) / 10000.0f - 1,
                       static_cast<int>(random() % 8));
  }
  return values;
}

TEST(GgufQuantize, BlocksAreThoseOfTheReference) {
  std::vector<float> values = RandomValues(32 * 200, 1);
  std::fill_n(values.begin() + 64, 32, 0.0f);
  values[96] = 3;
  values[97] = -3;  // the first of two equal extremes decides the sign
  for (const auto& [numbers, encoding] : {std::pair{GgufNumbers::kQ8_0, engine::Encoding::kQ8_0},
                                          std::pair{GgufNumbers::kQ4_0, engine::Encoding::kQ4_0}}) {
    const std::string expected = tests::Quantize(encoding, values);
    std::vector<std::byte> bytes(
        static_cast<size_t>(GgufBytes(numbers, static_cast<int64_t>(values.size()))));
    GgufError error;
    ASSERT_TRUE(EncodeGguf(numbers, values, bytes, &error));
    EXPECT_TRUE(std::ranges::equal(bytes, std::as_bytes(std::span(expected))));
    EXPECT_GT(error.RelativeRms(), 0);
    EXPECT_LT(error.RelativeRms(), numbers == GgufNumbers::kQ8_0 ? 0.01 : 0.12);
    EXPECT_LT(error.max_abs, numbers == GgufNumbers::kQ8_0 ? 1 : 17);
  }
}

TEST(GgufQuantize, TheErrorIsThatOfTheDecodedNumbers) {
  const std::vector<float> values = {1.0f + 0x1p-12f, -2, 0, 65504};
  std::vector<std::byte> bytes(8);
  GgufError error;
  ASSERT_TRUE(EncodeGguf(GgufNumbers::kF16, values, bytes, &error));
  EXPECT_EQ(error.max_abs, 0x1p-12);
  EXPECT_EQ(error.squares, 0x1p-24);
  std::vector<std::byte> whole(16);
  ASSERT_TRUE(EncodeGguf(GgufNumbers::kF32, values, whole, &error));
  EXPECT_EQ(error.max_abs, 0);
}

TEST(GgufQuantize, ValuesThatATypeDoesNotHaveAreRefused) {
  std::vector<float> values(32, 1.0f);
  std::vector<std::byte> bytes(128);
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    values[7] = bad;
    for (const GgufNumbers numbers : {GgufNumbers::kF32, GgufNumbers::kF16, GgufNumbers::kBF16,
                                      GgufNumbers::kQ8_0, GgufNumbers::kQ4_0}) {
      EXPECT_FALSE(EncodeGguf(numbers, values, bytes, nullptr)) << bad;
    }
  }
  values[7] = 1e6f;
  EXPECT_FALSE(EncodeGguf(GgufNumbers::kF16, values, bytes, nullptr));
  EXPECT_FALSE(EncodeGguf(GgufNumbers::kQ4_0, values, bytes, nullptr));
  EXPECT_TRUE(EncodeGguf(GgufNumbers::kQ8_0, values, bytes, nullptr));
}

}  // namespace
}  // namespace tandem::convert
