// Rows as numbered samples, and the tokenised file prepared from them.

#include "training/data/row_source.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"
#include "tests/training/data/chat_tokenizer.h"
#include "training/data/json_rows.h"
#include "training/data/tok_file.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

std::string Row(const std::string& question, const std::string& answer) {
  return R"({"messages":[{"role":"user","content":")" + question +
         R"("},{"role":"assistant","content":")" + answer + "\"}]}\n";
}

class RowSourceTest : public testing::Test {
 protected:
  RowSourceTest() { options_.example.columns = ColumnsOf(RowFormat::kMessages, {}); }

  std::unique_ptr<RowSource> Open(const std::string& text, const RowSource::Visit& visit = {}) {
    text_ = text;
    return RowSource::Open(JsonRows::Of(text_, "rows"),
                           std::make_shared<const SampleEncoder>(
                               engine::ChatTemplate::Compile(template_), *tokenizer_, encoder_),
                           options_, pool_, &report_, visit);
  }

  std::string Fault(const std::string& text) {
    try {
      Open(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  std::unique_ptr<engine::Tokenizer> tokenizer_ = tests::ChatTokenizer();
  ThreadPool pool_{2};
  const char* template_ = tests::kChatMl;
  RowOptions options_;
  EncoderOptions encoder_;
  DataReport report_;
  std::string text_;
};

TEST_F(RowSourceTest, ACheckThatHasEnoughReportsTheRowsBefore) {
  std::string text;
  for (int i = 0; i < 10; ++i) text += i == 1 ? "no row\n" : Row("a", "b");
  ThreadPool one(1);
  int left = 4;
  options_.is_enough = [&left] { return left-- == 0; };
  options_.on_bad_row = OnBadRow::kSkip;
  text_ = text;

  const auto source =
      RowSource::Open(JsonRows::Of(text_, "rows"),
                      std::make_shared<const SampleEncoder>(
                          engine::ChatTemplate::Compile(template_), *tokenizer_, encoder_),
                      options_, one, &report_);

  EXPECT_EQ(report_.rows, 10);
  EXPECT_EQ(report_.checked, 4);
  EXPECT_EQ(report_.bad_rows, 1);
  EXPECT_EQ(report_.samples, 3);
  EXPECT_EQ(source->size(), 3);
}

TEST_F(RowSourceTest, ACheckThatHasEnoughWithinARowLeavesItOut) {
  ThreadPool one(1);
  bool has_enough = false;
  int rows = 0;
  encoder_.is_cancelled = [&](int64_t) { return has_enough = rows >= 3; };
  options_.is_enough = [&] { return ++rows, has_enough; };
  text_ = Row("a", "b") + Row("c", "d") + Row("e", "f");

  RowSource::Open(JsonRows::Of(text_, "rows"),
                  std::make_shared<const SampleEncoder>(engine::ChatTemplate::Compile(template_),
                                                        *tokenizer_, encoder_),
                  options_, one, &report_);

  EXPECT_EQ(report_.checked, 2);
  EXPECT_EQ(report_.bad_rows, 0);
}

TEST_F(RowSourceTest, AnExaminationMayFindNoGoodRow) {
  options_.on_bad_row = OnBadRow::kSkip;
  options_.may_be_empty = true;

  const auto source = Open("1\n2\n");

  EXPECT_EQ(source->size(), 0);
  EXPECT_EQ(report_.bad_rows, 2);
  ASSERT_EQ(report_.listed.size(), 2u);
  EXPECT_EQ(report_.listed[1].where, "line 2");
}

TEST_F(RowSourceTest, ACancelledCheckReadsNoFurtherRow) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += Row("a", "b");
  std::atomic<int> n_asked = 0;
  options_.is_cancelled = [&] { return ++n_asked > 10; };

  EXPECT_EQ(Fault(text), "rows: check cancelled");
  EXPECT_LT(n_asked, 1000);  // only the rows of the first batch
}

TEST_F(RowSourceTest, ACheckIsCancelledWithinARow) {
  std::string row = R"({"messages":[)";
  for (int i = 0; i < 2000; ++i) {
    row += std::string(i == 0 ? "" : ",") +
           R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})";
  }
  row += "]}\n";
  std::atomic<int> n_asked = 0;
  encoder_.is_cancelled = [&](int64_t) { return ++n_asked > 10; };

  EXPECT_EQ(Fault(row), "rows: check cancelled");
  EXPECT_EQ(n_asked, 11);
}

TEST_F(RowSourceTest, AChatOfTooManyMessagesIsABadRow) {
  std::string row = R"({"messages":[)";
  for (int i = 0; i < 2049; ++i) {
    row += std::string(i == 0 ? "" : ",") +
           R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})";
  }

  const std::string fault = Fault(row + "]}\n");

  EXPECT_NE(fault.find("line 1: messages has 4098 messages, and a chat may have 4096: split it"),
            std::string::npos)
      << fault;
}

TEST_F(RowSourceTest, ListsBadRowsUpToFifty) {
  std::string text = Row("a", "b");
  for (int i = 0; i < 60; ++i) text += "{}\n";
  const std::string fault = Fault(text);

  EXPECT_TRUE(fault.starts_with("rows: 60 of 61 rows are bad\n  line 2: 'messages' is missing\n"))
      << fault;
  EXPECT_NE(fault.find("\n  line 51: "), std::string::npos);
  EXPECT_EQ(fault.find("\n  line 52: "), std::string::npos);
  EXPECT_NE(fault.find("\n  and 10 more"), std::string::npos);
}

TEST_F(RowSourceTest, LeavesBadRowsOutWhenToldTo) {
  options_.on_bad_row = OnBadRow::kSkip;
  const auto source = Open("{}\n" + Row("a", "b") + "nonsense\n" + Row("c", "d"));

  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->Where(0), "line 2");
  EXPECT_EQ(source->Where(1), "line 4");
  EXPECT_EQ(report_.bad_rows, 2);
  EXPECT_NE(Fault("{}\n{}\n").find("none of 2 rows gives a sample to train on"), std::string::npos);
}

TEST_F(RowSourceTest, SamplesThatAreTruncatedToNothingAreLeftOut) {
  options_.max_tokens = 40;
  options_.overflow = Overflow::kTruncate;
  const auto source = Open(Row("a", "b") + Row(std::string(60, 'x'), "y") + Row("c", "d"));

  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->Where(1), "line 3");
  EXPECT_EQ(report_.over_length, 1);
  EXPECT_EQ(report_.zero_loss, 1);
}

TEST_F(RowSourceTest, OfSamplesWhoseEndsAreKeptTheEndMustBeLearned) {
  options_.max_tokens = 40;
  options_.overflow = Overflow::kTruncateLeft;
  const std::string long_answer = R"({"messages":[{"role":"user","content":"a"},)"
                                  R"({"role":"assistant","content":"b","weight":1},)"
                                  R"({"role":"user","content":")" +
                                  std::string(60, 'x') +
                                  R"("},{"role":"assistant","content":"c","weight":0}]})" + "\n";
  const auto source = Open(Row("a", "b") + Row(std::string(60, 'x'), "y") + long_answer);

  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->Where(1), "line 2");
  EXPECT_EQ(report_.over_length, 2);
  EXPECT_EQ(report_.zero_loss, 1);
}

TEST_F(RowSourceTest, LongSamplesAreDroppedOrRefusedAsTheSpecSays) {
  options_.max_tokens = 40;
  const std::string text = Row("a", "b") + Row("c", std::string(60, 'y'));
  options_.overflow = Overflow::kDrop;
  EXPECT_EQ(Open(text)->size(), 1);
  options_.overflow = Overflow::kError;
  EXPECT_NE(Fault(text).find("line 2: has 82 tokens, but a row holds only 40"), std::string::npos)
      << Fault(text);
}

constexpr const char* kTwoTurns =
    R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
    R"({"role":"user","content":"c"},{"role":"assistant","content":"d"}]})"
    "\n";

TEST_F(RowSourceTest, RowsThatTheTemplateRewritesBecomeASampleForEachAnswer) {
  for (const char* source : {tests::kDropsThoughts, tests::kOpensThought, tests::kEndsWhole}) {
    SCOPED_TRACE(source);
    template_ = source;
    std::vector<std::vector<TokenId>> seen;
    const auto auto_source = Open(Row("q", "r") + kTwoTurns + Row("s", "t"),
                                  [&](const Sample& sample) { seen.push_back(sample.tokens); });
    ASSERT_EQ(auto_source->size(), 4);
    EXPECT_EQ(report_.bad_rows, 0);
    EXPECT_EQ(report_.split_rows, 1);
    EXPECT_EQ(auto_source->Where(0), "line 1");
    EXPECT_EQ(auto_source->Where(1), "line 2, answer 1");
    EXPECT_EQ(auto_source->Where(2), "line 2, answer 2");
    EXPECT_EQ(auto_source->Where(3), "line 3");
    EXPECT_FALSE(auto_source->is_every_row());
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(auto_source->Make(i).tokens, seen[static_cast<size_t>(i)]);
    }

    options_.turns = Turns::kApart;
    const auto apart = Open(Row("q", "r") + kTwoTurns + Row("s", "t"));
    ASSERT_EQ(apart->size(), 4);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(HashOf(auto_source->Make(i)), HashOf(apart->Make(i))) << i;
    }
    options_.turns = Turns::kTogether;
    EXPECT_NE(Fault(kTwoTurns).find("line 1: messages[1]: the chat template writes this answer"),
              std::string::npos)
        << Fault(kTwoTurns);
    options_.turns = Turns::kAuto;
  }
}

TEST_F(RowSourceTest, RowsThatTheTemplateDoesNotRewriteStayWhole) {
  const auto source = Open(kTwoTurns + Row("a", "b"));
  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(report_.split_rows, 0);
  EXPECT_TRUE(source->is_every_row());
  options_.turns = Turns::kTogether;
  const auto together = Open(kTwoTurns + Row("a", "b"));
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(HashOf(source->Make(i)), HashOf(together->Make(i))) << i;
  }
}

// Public chats with public templates, on machines that have them.
TEST_F(RowSourceTest, RealChatsAreLearnedWithTemplatesThatRewriteEarlierTurns) {
  const fs::path data = tests::SharedDir() / "data";
  if (!fs::exists(data / "chat_templates")) GTEST_SKIP() << data << " is not there";
  for (const char* name : {"qwen3-0.6b.jinja", "phi-3.5-mini-instruct.jinja"}) {
    const std::string source = engine::ReadWholeFile(data / "chat_templates" / name, 1 << 20);
    template_ = source.c_str();
    for (const char* rows :
         {"glaive_messages.jsonl", "kto_mix_messages.jsonl", "glaive_toolcall_messages.jsonl"}) {
      SCOPED_TRACE(std::string(name) + ", " + rows);
      EXPECT_EQ(Fault(engine::ReadWholeFile(data / "chat" / rows, 1 << 24)), "");
      EXPECT_EQ(report_.bad_rows, 0);
      // Without an EOS text the Phi template rewrites nothing.
      if (std::string_view(name).starts_with("qwen3")) {
        EXPECT_GT(report_.split_rows, 0);
      }
    }
  }
}

TEST_F(RowSourceTest, MakesTheSameSamplesAsItChecked) {
  options_.turns = Turns::kApart;
  options_.on_bad_row = OnBadRow::kSkip;
  std::string text;
  for (int i = 0; i < 700; ++i) {
    text += i % 5 == 3
                ? "{}\n"
                : R"({"messages":[{"role":"user","content":"c)" + std::to_string(i) +
                      R"("},{"role":"assistant","content":"d"},{"role":"user","content":"e"},)" +
                      R"({"role":"assistant","content":"f"}]})" + "\n";
  }
  std::vector<std::vector<TokenId>> seen;
  const auto source = Open(text, [&](const Sample& sample) { seen.push_back(sample.tokens); });

  ASSERT_EQ(source->size(), 2 * 560);
  ASSERT_EQ(seen.size(), 2u * 560);
  for (int64_t i = 0; i < source->size(); ++i) {
    const Sample sample = source->Make(i);
    EXPECT_EQ(sample.tokens, seen[static_cast<size_t>(i)]) << i;
    EXPECT_EQ(TrainedTokens(sample), 2);  // a letter and the end
  }
  EXPECT_EQ(source->Where(0), "line 1, answer 1");
  EXPECT_EQ(source->Where(1), "line 1, answer 2");
}

class TokFileTest : public testing::Test {
 protected:
  static TokIdentity Identity() { return {"t", "c", R"({"turns":0,"eos":1})", 300}; }

  static Sample Numbered(TokenId from, int n) {
    Sample sample;
    for (int i = 0; i < n; ++i) sample.Append({from + i}, i % 3 == 1);
    return sample;
  }

  fs::path Write(const TokIdentity& identity) {
    const fs::path path = dir_ / "data.tok";
    TokWriter writer(path, identity);
    for (int i = 0; i < 20; ++i) writer.Add(Numbered(i, 1 + i * 7 % 13));
    writer.Finish();
    return path;
  }

  static std::string Fault(const fs::path& path, const TokIdentity& identity) {
    try {
      TokFile::Open(path, identity);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  tests::TemporaryDir dir_;
};

TEST_F(TokFileTest, GivesBackWhatWasWritten) {
  for (const int64_t vocabulary : {300, 100000}) {
    TokIdentity identity = Identity();
    identity.vocab_size = vocabulary;
    const fs::path path = Write(identity);
    ASSERT_TRUE(TokFile::IsTokFile(path));
    const auto file = TokFile::Open(path, identity);

    ASSERT_EQ(file->size(), 20);
    for (int i = 0; i < 20; ++i) {
      const Sample expected = Numbered(i, 1 + i * 7 % 13);
      EXPECT_EQ(file->Make(i).tokens, expected.tokens);
      EXPECT_EQ(file->Make(i).trained, expected.trained);
    }
  }
}

TEST_F(TokFileTest, IsRefusedForAnotherTokenizerTemplateOrOption) {
  const fs::path path = Write(Identity());
  TokIdentity other = Identity();
  other.tokenizer_sha256 = "u";
  EXPECT_NE(Fault(path, other).find("with a different tokenizer"), std::string::npos);
  other = Identity();
  other.template_sha256 = "d";
  EXPECT_NE(Fault(path, other).find("with a different chat template"), std::string::npos);
  other = Identity();
  other.options = R"({"turns":1,"eos":1})";
  EXPECT_NE(Fault(path, other).find("with different options (turns '0', now '1')"),
            std::string::npos)
      << Fault(path, other);
}

TEST_F(TokFileTest, IsRefusedWhenAnotherVersionOfTheEncoderPreparedIt) {
  TokIdentity now = Identity();
  now.options = R"({"encoder_version":3,"turns":0,"eos":1})";
  TokIdentity earlier = now;
  earlier.options = R"({"encoder_version":2,"turns":0,"eos":1})";

  EXPECT_NE(Fault(Write(Identity()), now).find("(encoder_version 1, now 3); run `tandem data"),
            std::string::npos);
  EXPECT_NE(Fault(Write(earlier), now).find("(encoder_version 2, now 3); run `tandem data"),
            std::string::npos);
  EXPECT_EQ(Fault(Write(now), now), "");
}

TEST_F(TokFileTest, ABrokenFileIsRefusedWhereverItIsBroken) {
  const std::string whole = engine::ReadWholeFile(Write(Identity()), 1 << 20);
  const fs::path path = dir_ / "broken.tok";
  const auto write = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  };
  for (size_t at = 8; at < whole.size(); at += at < 4096 ? 97 : 1) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    write(bytes);
    EXPECT_NE(Fault(path, Identity()), "") << "byte " << at;
  }
  for (const size_t n : {size_t{10}, size_t{4000}, size_t{4096}, whole.size() - 1}) {
    write(whole.substr(0, n));
    EXPECT_NE(Fault(path, Identity()), "") << n << " bytes";
  }
}

TEST_F(TokFileTest, WhatIsNotFinishedLeavesNothing) {
  { TokWriter writer(dir_ / "data.tok", Identity()); }

  EXPECT_TRUE(fs::is_empty(dir_.path()));
}

}  // namespace
}  // namespace tandem::training
