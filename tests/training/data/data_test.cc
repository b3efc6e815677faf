#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/training/bpe_trainer.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"
#include "training/data/content_words.h"
#include "training/data/order/permutation.h"
#include "training/data/packer.h"
#include "training/data/sample_maker.h"

namespace tandem::training {
namespace {

TEST(TextCorpus, CutsAtDelimiterLinesOnly) {
  const auto samples = SplitAtDelimiterLines(
      "  one\ntwo \n<|e|>\n\n<|e|>\r\nthree says <|e|> here\n<|e|> no\n<|e|>", "<|e|>");

  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0], "one\ntwo");
  EXPECT_EQ(samples[1], "three says <|e|> here\n<|e|> no");
}

TEST(TextCorpus, WithoutDelimiterTheFileIsOneSample) {
  EXPECT_EQ(SplitAtDelimiterLines("a\n\nb\n", "").size(), 1u);
  EXPECT_TRUE(SplitAtDelimiterLines(" \n ", "").empty());
}

TEST(TextCorpus, RefusesWhatIsNoText) {
  const tests::TemporaryDir dir;
  const auto fault = [&](const std::string& bytes) -> std::string {
    std::ofstream(dir / "f", std::ios::binary) << bytes;
    try {
      TextCorpus::Open(dir / "f", "<|e|>");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(fault("").find("no text to train on"), std::string::npos);
  EXPECT_NE(fault("<|e|>\n \n<|e|>\n").find("no text to train on"), std::string::npos);
  EXPECT_NE(fault(std::string("a\0b", 3)).find("binary"), std::string::npos);
  // A hole in the file reads as zeros, beyond the checked beginning.
  std::ofstream(dir / "f") << std::string(5000, 'x');
  std::filesystem::resize_file(dir / "f", TextCorpus::kMaxSampleBytes + 6000);
  try {
    TextCorpus::Open(dir / "f", "<|e|>");
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("text 1 has"), std::string::npos) << error.what();
  }
}

TEST(Permute, IsAPermutationForEverySize) {
  for (const int64_t n : {1, 2, 3, 5, 16, 17, 255, 1000, 65537}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t image = Permute(42, n, i);
      EXPECT_GE(image, 0);
      EXPECT_LT(image, n);
      seen.insert(image);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), n);
  }
}

TEST(Permute, DependsOnTheSeedAndMovesAlmostEverything) {
  int64_t same_as_identity = 0;
  int64_t same_as_other_seed = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    same_as_identity += Permute(1, 1000, i) == i ? 1 : 0;
    same_as_other_seed += Permute(1, 1000, i) == Permute(2, 1000, i) ? 1 : 0;
  }

  EXPECT_LT(same_as_identity, 20);
  EXPECT_LT(same_as_other_seed, 20);
}

// Sample i: `length` tokens 1000 i, 1000 i + 1, …
Sample Numbered(int64_t i, int64_t length) {
  Sample sample;
  std::vector<TokenId> tokens;
  for (int64_t t = 0; t < length; ++t) tokens.push_back(static_cast<TokenId>(1000 * i + t));
  sample.Append(tokens, true);
  return sample;
}

const std::vector<int64_t> kLengths = {5, 30, 12, 7, 3, 22, 9, 17, 2, 11};

PackerOptions Options(Packing packing, int64_t row_length) {
  PackerOptions options;
  options.packing = packing;
  options.row_length = row_length;
  options.n_samples = static_cast<int64_t>(kLengths.size());
  options.n_epochs = 2;
  options.seed = 3;
  options.window = 4;
  return options;
}

Packer MakePacker(const PackerOptions& options) {
  return {options, [](int64_t i) { return Numbered(i, kLengths[static_cast<size_t>(i)]); }};
}

std::vector<PackedRow> AllRows(Packer& packer) {
  std::vector<PackedRow> rows;
  PackedRow row;
  while (packer.Next(&row)) rows.push_back(row);
  return rows;
}

void CheckRow(const PackedRow& row, int64_t row_length) {
  ASSERT_EQ(static_cast<int64_t>(row.tokens.size()), row_length);
  size_t at = 0;
  for (const int64_t length : row.segment_lengths) {
    ASSERT_GT(length, 0);
    for (int64_t p = 0; p < length; ++p, ++at) {
      EXPECT_EQ(row.positions[at], p);
      EXPECT_EQ(row.samples[at], row.samples[at - static_cast<size_t>(p)]);
      if (row.samples[at] < 0) {
        EXPECT_EQ(row.targets[at], -1);
        EXPECT_EQ(row.weights[at], 0);
      } else {
        EXPECT_EQ(row.targets[at], row.tokens[at] + 1) << "a target of another sample";
      }
    }
  }
  EXPECT_EQ(at, row.tokens.size());
}

TEST(Packer, EveryTargetOfEveryEpochIsTrainedOnceWhateverThePacking) {
  for (const Packing packing :
       {Packing::kNone, Packing::kConcatThenSplit, Packing::kFirstFit, Packing::kBestFit}) {
    PackerOptions options = Options(packing, 16);
    options.overflow = Overflow::kSplit;
    Packer packer = MakePacker(options);
    std::map<TokenId, int> trained;
    for (const PackedRow& row : AllRows(packer)) {
      CheckRow(row, 16);
      for (const TokenId target : row.targets) {
        if (target >= 0) ++trained[target];
      }
    }

    int64_t targets = 0;
    for (const int64_t length : kLengths) targets += length - 1;
    EXPECT_EQ(static_cast<int64_t>(trained.size()), targets) << static_cast<int>(packing);
    for (const auto& [target, times] : trained) EXPECT_EQ(times, 2) << target;
  }
}

TEST(Packer, ConcatThenSplitLeavesNoHoleBeforeTheEnd) {
  Packer packer = MakePacker(Options(Packing::kConcatThenSplit, 16));
  const std::vector<PackedRow> rows = AllRows(packer);

  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    EXPECT_EQ(std::count(rows[i].samples.begin(), rows[i].samples.end(), -1), 0);
  }
}

TEST(Packer, BestFitWastesLessThanOneSamplePerRow) {
  PackerOptions options = Options(Packing::kBestFit, 32);
  Packer best = MakePacker(options);
  options.packing = Packing::kNone;
  Packer none = MakePacker(options);

  EXPECT_LT(AllRows(best).size(), AllRows(none).size() / 2 + 1);
}

TEST(Packer, TruncatesDropsOrRefusesWhatIsTooLong) {
  PackerOptions options = Options(Packing::kFirstFit, 16);
  options.overflow = Overflow::kTruncate;
  Packer truncating = MakePacker(options);
  AllRows(truncating);
  EXPECT_EQ(truncating.truncated(), 4);  // cut 30 and 22 tokens, twice; 17 tokens take 16 positions
  options.overflow = Overflow::kDrop;
  Packer dropping = MakePacker(options);
  for (const PackedRow& row : AllRows(dropping)) CheckRow(row, 16);
  EXPECT_EQ(dropping.dropped(), truncating.truncated());
  options.overflow = Overflow::kError;
  Packer refusing = MakePacker(options);
  EXPECT_THROW(AllRows(refusing), Error);
}

TEST(Packer, TruncatingAtTheLeftKeepsTheEnds) {
  PackerOptions options = Options(Packing::kNone, 16);
  options.overflow = Overflow::kTruncateLeft;
  options.shuffle = false;
  options.n_samples = 1;
  options.n_epochs = 1;
  Sample sample;
  for (TokenId id = 0; id < 30; ++id) sample.Append({id}, id >= 20);
  Packer packer(options, [&](int64_t) { return sample; });
  PackedRow row;
  ASSERT_TRUE(packer.Next(&row));

  EXPECT_EQ(packer.truncated(), 1);
  EXPECT_EQ(row.tokens.front(), 13);
  EXPECT_EQ(row.tokens.back(), 28);
  EXPECT_EQ(row.targets.back(), 29) << "the last token is learned";
  EXPECT_EQ(row.positions.front(), 0);
  EXPECT_EQ(std::count(row.targets.begin(), row.targets.end(), -1), 6);
  EXPECT_FALSE(packer.Next(&row));

  // Truncation that removes all trained tokens drops the sample.
  sample.trained.assign(30, 0);
  sample.trained[5] = 1;
  Packer nothing(options, [&](int64_t) { return sample; });
  EXPECT_FALSE(nothing.Next(&row));
}

TEST(Packer, GoesOnExactlyFromASavedState) {
  for (const Overflow overflow : {Overflow::kSplit, Overflow::kTruncateLeft}) {
    for (const Packing packing :
         {Packing::kConcatThenSplit, Packing::kFirstFit, Packing::kBestFit}) {
      PackerOptions options = Options(packing, 13);
      options.overflow = overflow;
      Packer whole = MakePacker(options);
      const std::vector<PackedRow> rows = AllRows(whole);
      for (size_t cut = 0; cut < rows.size(); ++cut) {
        Packer first = MakePacker(options);
        PackedRow row;
        for (size_t i = 0; i < cut; ++i) first.Next(&row);
        Packer second = MakePacker(options);
        second.Restore(first.state());

        for (size_t i = cut; i < rows.size(); ++i) {
          ASSERT_TRUE(second.Next(&row));
          EXPECT_EQ(row.tokens, rows[i].tokens);
          EXPECT_EQ(row.targets, rows[i].targets);
          EXPECT_EQ(row.samples, rows[i].samples);
        }
        EXPECT_FALSE(second.Next(&row));
      }
    }
  }
}

TEST(Packer, KeepsToTheLimitOfSegments) {
  PackerOptions options = Options(Packing::kBestFit, 64);
  options.max_segments = 2;
  Packer packer = MakePacker(options);

  for (const PackedRow& row : AllRows(packer)) {
    EXPECT_LE(row.segment_lengths.size(), 3u);  // the third is padding
    CheckRow(row, 64);
  }
}

TEST(Packer, NothingToTrainIsAnErrorNotAnEndlessLoop) {
  PackerOptions options = Options(Packing::kBestFit, 8);
  options.n_epochs = 0;
  Packer packer(options, [](int64_t i) { return Numbered(i, 1); });
  PackedRow row;

  EXPECT_THROW(packer.Next(&row), Error);
}

class Stories : public testing::Test {
 protected:
  Stories() {
    std::ofstream file(dir_.path() / "stories.txt");
    for (int i = 0; i < 30; ++i) {
      file << "Once upon a time there was a dog. Then Tim saw the big rocket and the rocket was "
              "shiny. Sue and Tim were happy.\n<|endoftext|>\n"
           << "Lily had a cat. The cat found Lily near the river. The river was cold.\n"
              "<|endoftext|>\n";
    }
  }

  TextCorpus Corpus() const {
    return TextCorpus::Open(dir_.path() / "stories.txt", "<|endoftext|>");
  }

  tests::TemporaryDir dir_;
};

TEST_F(Stories, ContentWordsAreTypicalOnesAndNoNames) {
  const TextCorpus corpus = Corpus();
  const ContentWords words(corpus);

  const std::vector<std::string> ranked = words.Rank(corpus.sample(0), 8);
  EXPECT_EQ(ranked[0], "rocket");  // twice
  EXPECT_NE(std::find(ranked.begin(), ranked.end(), "shiny"), ranked.end());
  for (const char* not_wanted : {"tim", "sue", "lily", "once", "the", "was"}) {
    EXPECT_EQ(std::find(ranked.begin(), ranked.end(), not_wanted), ranked.end()) << not_wanted;
  }
}

TEST_F(Stories, HeadersHaveZeroToThreeWordsOfTheirStory) {
  const TextCorpus corpus = Corpus();
  const ContentWords words(corpus);

  std::set<size_t> counts;
  for (int64_t i = 0; i < corpus.size(); ++i) {
    const std::string header = words.Header(corpus.sample(i), 1, i);
    EXPECT_EQ(header, words.Header(corpus.sample(i), 1, i));
    if (header.empty()) {
      counts.insert(0);
      continue;
    }
    ASSERT_EQ(header.substr(0, 7), "Words: ");
    ASSERT_EQ(header.back(), '\n');
    counts.insert(1 + static_cast<size_t>(std::count(header.begin(), header.end(), ',')));
    const std::string first = header.substr(7, header.find_first_of(",\n") - 7);
    EXPECT_NE(corpus.sample(i).find(first), std::string_view::npos) << header;
  }
  EXPECT_EQ(counts, (std::set<size_t>{0, 1, 2, 3}));
}

TEST_F(Stories, TheHeaderIsReadAndNotPredicted) {
  const TextCorpus corpus = Corpus();
  const std::string json = engine::TrainBpe(
      corpus.sample(0), {.vocab_size = 300, .special_tokens = {"<|endoftext|>"}}, nullptr);
  engine::TokenizerTexts texts;
  texts.source = "test";
  texts.tokenizer_json = json;
  const auto tokenizer = std::move(engine::LoadTokenizer(texts)->tokenizer);
  SampleOptions options;
  options.eos = tokenizer->FindToken("<|endoftext|>");
  options.bos = options.eos;
  options.content_word_header = true;
  options.seed = 1;
  const SampleMaker maker(corpus, *tokenizer, options);

  bool some_header = false;
  for (int64_t i = 0; i < 10; ++i) {
    const Sample sample = maker.Make(i);
    ASSERT_EQ(sample.tokens.size(), sample.trained.size());
    EXPECT_EQ(sample.tokens.front(), *options.bos);
    EXPECT_EQ(sample.tokens.back(), *options.eos);
    EXPECT_EQ(sample.trained.back(), 1);
    std::vector<TokenId> read, predicted;
    for (size_t t = 0; t < sample.tokens.size(); ++t) {
      (sample.trained[t] != 0 ? predicted : read).push_back(sample.tokens[t]);
    }
    EXPECT_EQ(engine::Decode(*tokenizer, predicted, true), corpus.sample(i));
    const std::string header = engine::Decode(*tokenizer, read, true);
    EXPECT_EQ(header + std::string(corpus.sample(i)), maker.Text(i));
    some_header = some_header || !header.empty();
  }
  EXPECT_TRUE(some_header);
}

}  // namespace
}  // namespace tandem::training
