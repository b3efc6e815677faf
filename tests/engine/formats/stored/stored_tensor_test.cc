#include "engine/formats/stored/stored_tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "engine/io/sha256.h"
#include "tests/support/gguf_writer.h"

namespace tandem::engine {
namespace {

struct Decoded {
  Encoding encoding;
  const char* sha256;
};
// Hashes of 64 blocks of tests::RandomBlocks, decoded by gguf-py 0.17 (numpy 2.4); zeros are
// unsigned.
constexpr Decoded kDecoded[] = {
    {Encoding::kQ4_0, "5dc6ad1c1b17ebf02e2ec97181ed3c96685dc83e6bc44dcd79791143c19c8bcd"},
    {Encoding::kQ4_1, "f01fed0bf0a6411811416a146738dd4334c221095d9d31ed53ae82c4c3364945"},
    {Encoding::kQ5_0, "347bf41ca080231dddaf44f02acca415af63d724d055eb705bc6b9bd9ed3bd72"},
    {Encoding::kQ5_1, "e4ae8923e3e20461b928c697fd8b5b1c8535c4682842e6f6144bb6d5d26ba359"},
    {Encoding::kQ8_0, "0d125cbc528a80e4cb01edabc636d73572f73f764fdbfec304227ccae07dfb3e"},
    {Encoding::kQ4_K, "248350fc085120e925d4812fc37dff4e7737dbae185ee6731896cb4399a24f20"},
    {Encoding::kQ5_K, "3e9618fd5bcc8c07409d4383bffeb12d7973c94064cc60b63283a16bcb1b9007"},
    {Encoding::kQ6_K, "7075665af25446ae428e1674f51f64e6a646ca56b1c5d98babd11b23246ab40d"},
};

StoredTensor BlocksOf(Encoding encoding, const std::string& bytes, int64_t rows) {
  const auto blocks = static_cast<int64_t>(bytes.size()) / EncodedBlockBytes(encoding);
  return {.view = {reinterpret_cast<const std::byte*>(bytes.data()),
                   DType::kF32,
                   {rows, blocks * BlockElements(encoding) / rows}},
          .encoding = encoding};
}

TEST(StoredTensor, EveryBlockDecodesToTheBitsOfItsOwnLibrary) {
  for (const Decoded& expected : kDecoded) {
    const std::string bytes = tests::RandomBlocks(expected.encoding, 64);
    std::vector<float> values = DecodeTensor(BlocksOf(expected.encoding, bytes, 4));
    for (float& value : values) value += 0.0f;

    EXPECT_EQ(ToHex(Sha256Of(std::as_bytes(std::span(values)))), expected.sha256)
        << EncodingName(expected.encoding);
  }
}

TEST(StoredTensor, RowsInPairsComeOutAsHalves) {
  // Two heads of four rows; the file stores each head as 0a 0b 1a 1b.
  const std::vector<float> rows = {0, 2, 1, 3, 4, 6, 5, 7};
  const StoredTensor tensor{
      .view = {reinterpret_cast<const std::byte*>(rows.data()), DType::kF32, {8, 1}},
      .interleaved_heads = 2};

  EXPECT_EQ(DecodeTensor(tensor), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(StoredTensor, WhatWasAddedIsTakenAway) {
  const std::vector<float> norm = {1.5f, 0.75f, 1};
  const StoredTensor tensor{
      .view = {reinterpret_cast<const std::byte*>(norm.data()), DType::kF32, {3}}, .added = 1};

  EXPECT_FALSE(tensor.IsAsAsked());
  EXPECT_EQ(DecodeTensor(tensor), (std::vector<float>{0.5f, -0.25f, 0}));
}

TEST(StoredTensor, ATransposeIsTurnedBack) {
  std::vector<float> file(6);
  std::iota(file.begin(), file.end(), 0.0f);  // two rows of three
  const StoredTensor tensor{
      .view = {reinterpret_cast<const std::byte*>(file.data()), DType::kF32, {3, 2}},
      .transposed = true};

  EXPECT_EQ(tensor.rows(), 2);
  EXPECT_EQ(DecodeTensor(tensor), (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

}  // namespace
}  // namespace tandem::engine
