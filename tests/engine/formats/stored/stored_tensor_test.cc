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
// Hashes of 64 blocks of tests::RandomBlocks, decoded by gguf-py 0.19 (numpy 2.4); zeros are
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
    {Encoding::kQ2_K, "08fbe6bd6a476a533a7d937ad17cfb239b65712e214fb51e1018047c7f4c77e7"},
    {Encoding::kQ3_K, "e61318e090cdc16c43181b66df5bd3e94c3a0db82290629fcb3d5fbfd657304b"},
    {Encoding::kIQ4_NL, "bb9c96afe226aafcd985197134df1a1766eff82e3ac12b49bab6322148fa5052"},
    {Encoding::kIQ4_XS, "6d8c11fc273ecf978265cf5b3a6edd4aa84beda432a096bf5a4cc66dd3239942"},
    {Encoding::kIQ3_S, "b94d4efb5ea1c1a239b1de1cd93d6061271ed405665c5bc39fa144c1c8f260a6"},
    {Encoding::kIQ3_XXS, "b44fdd8120abbb5ce6b76332c854606a40a87a278b29abccb856070ce11d647e"},
    {Encoding::kIQ2_S, "b9f4027e771828cf42db4a25b0a38efb757240c5f2f7e468d972fd10da6ab62b"},
    {Encoding::kIQ2_XS, "0e13eb852959d7facffd2ca53c5662a21d6d9193775ce90f9775f36c89e06e3c"},
    {Encoding::kIQ2_XXS, "8cbd870a79113435c2eb413526ca96adde896a724508053b894a348b5bee2bbc"},
    {Encoding::kIQ1_S, "3a8006b54830b748d5825522a226eed3225a52b3284ba09e1efd9fde56cbfec9"},
    {Encoding::kIQ1_M, "a48a0c8b8ea6caa8e8e5ff7984e6fce817c298882c51611a05a92711d0760325"},
    {Encoding::kTQ1_0, "a221df1a4141c3d7d8513689fcda6238f9a3e0afe8a6ff409cc6888236063e49"},
    {Encoding::kTQ2_0, "518f7f28e393152bbe91e12b18e25a22eb4ce9d8e76410c97a026b31f590e43c"},
    {Encoding::kMXFP4, "d23b9cba56b72845bb90edd7295b96c401df829a1f1df3e41ac97e9a13985944"},
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
