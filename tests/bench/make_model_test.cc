#include "bench/make_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/temporary_dir.h"

namespace tandem::bench {
namespace {

std::unique_ptr<engine::Tokenizer> Load(const std::string& json) {
  engine::TokenizerTexts texts;
  texts.source = "test";
  texts.tokenizer_json = json;
  return std::move(engine::LoadTokenizer(texts)->tokenizer);
}

TEST(SyllableTokenizer, HasExactlyTheTokensAskedForAndNoTwoAlike) {
  for (const int64_t size : {257, 300, 32'000, 128'256}) {
    const auto json = nlohmann::json::parse(SyllableTokenizerJson(size));
    const auto& vocabulary = json["model"]["vocab"];
    std::set<int64_t> ids;
    for (const auto& id : vocabulary) ids.insert(id.get<int64_t>());
    // <|endoftext|> is an added token, not in the vocabulary.
    EXPECT_EQ(ids.size(), static_cast<size_t>(size - 1));
    EXPECT_EQ(*ids.rbegin(), size == 257 ? 255 : size - 1);
    EXPECT_EQ(Load(json.dump())->vocab_size(), size);
  }
}

TEST(SyllableTokenizer, EncodesWordsOfSyllablesAsOneTokenAndAnyTextAsItself) {
  const auto tokenizer = Load(SyllableTokenizerJson(32'000));

  EXPECT_EQ(tokenizer->Encode(" babe", engine::SpecialTokens::kPlainText).size(), 1u);
  EXPECT_EQ(tokenizer->Encode(" babebi", engine::SpecialTokens::kPlainText).size(), 1u);
  const std::string text = "People, come to the t\u00e4ble: 12 banana!\n";
  const auto ids = tokenizer->Encode(text, engine::SpecialTokens::kPlainText);
  EXPECT_EQ(engine::Decode(*tokenizer, ids, true), text);
  EXPECT_LT(ids.size(), text.size());
}

TEST(MakeModel, AShapeThatIsNotKnownIsRefusedByName) {
  const tests::TemporaryDir dir;

  EXPECT_THROW(MakeModel("llama-9b", dir.path() / "model"), Error);
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "model"));
}

}  // namespace
}  // namespace tandem::bench
