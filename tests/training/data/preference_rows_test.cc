// Preference pairs: their forms in rows, as samples, and as rows of tokens.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/training/data/chat_tokenizer.h"
#include "tests/training/data/fault.h"
#include "training/data/json_rows.h"
#include "training/data/packer.h"
#include "training/data/pair.h"
#include "training/data/row_source.h"

namespace tandem::training {
namespace {

using nlohmann::ordered_json;

Example Parse(const std::string& row, RowFormat format, bool as_chat = false) {
  ExampleOptions options;
  options.format = format;
  options.columns = ColumnsOf(format, {});
  options.instructions_as_chat = as_chat;
  return ParseExample(ordered_json::parse(row), options);
}

Example Chosen(const std::string& row) { return Parse(row, RowFormat::kPreference); }

std::string FaultOf(const std::string& row, RowFormat format = RowFormat::kPreference) {
  return Fault([&] { Parse(row, format); });
}

// "role:text" of every message; trained messages in capitals.
std::string Said(const Conversation& chat) {
  std::string text;
  for (size_t i = 0; i < chat.messages->size(); ++i) {
    const ordered_json& message = (*chat.messages)[i];
    text += (i > 0 ? " " : "") + message.at("role").get<std::string>().substr(0, 1) +
            (chat.learned[i] ? "!" : ":") + message.at("content").get<std::string>();
  }
  return text;
}

TEST(PreferenceRows, AnswersOfOpenAisLinesFollowTheirInput) {
  const Example pair = Parse(
      R"({"input":{"messages":[{"role":"system","content":"S"},{"role":"user","content":"Q"}],
          "tools":[{"type":"function","function":{"name":"f"}}],"parallel_tool_calls":true},
          "preferred_output":[{"role":"assistant","content":"good"}],
          "non_preferred_output":[{"role":"assistant","content":"bad"}]})",
      RowFormat::kOpenAiPreference);

  EXPECT_EQ(Said(pair.chat), "s:S u:Q a!good");
  EXPECT_EQ(Said(pair.rejected->chat), "s:S u:Q a!bad");
  EXPECT_EQ(pair.chat.tools->at(0).at("function").at("name"), "f");
}

TEST(PreferenceRows, OfWholeChatsThePromptIsWhatTheyShare) {
  const Example pair = Chosen(
      R"({"prompt":"Q2","chosen":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"},
          {"role":"user","content":"Q2"},{"role":"assistant","content":"good"}],
          "rejected":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"},
          {"role":"user","content":"Q2"},{"role":"assistant","content":"bad"}]})");

  EXPECT_EQ(Said(pair.chat), "u:Q a:A u:Q2 a!good");
  EXPECT_EQ(Said(pair.rejected->chat), "u:Q a:A u:Q2 a!bad");
}

TEST(PreferenceRows, AnswersStandBesideAPromptOfMessagesOrText) {
  const char* answers = R"("chosen":[{"role":"assistant","content":"good"}],)"
                        R"("rejected":[{"role":"assistant","content":"bad"}]})";
  EXPECT_EQ(Said(Chosen(std::string(R"({"prompt":"Q",)") + answers).chat), "u:Q a!good");
  EXPECT_EQ(Said(Chosen(std::string(R"({"prompt":[{"role":"user","content":"Q"}],)") + answers)
                     .rejected->chat),
            "u:Q a!bad");
  EXPECT_EQ(
      Said(
          Chosen(R"({"prompt":[{"role":"user","content":"Q"}],"chosen":"g","rejected":"b"})").chat),
      "u:Q a!g");
}

TEST(PreferenceRows, TextsStayTextsUnlessTheTemplateIsAskedFor) {
  const std::string row = R"({"prompt":"Two and two is","chosen":" four","rejected":" five"})";
  const Example plain = Chosen(row);
  EXPECT_EQ(plain.plain.prompt, "Two and two is");
  EXPECT_EQ(plain.plain.completion, " four");
  EXPECT_EQ(plain.rejected->plain.completion, " five");
  EXPECT_EQ(Said(Parse(row, RowFormat::kPreference, true).rejected->chat),
            "u:Two and two is a! five");
}

TEST(PreferenceRows, OfWholeTextsThePromptIsTheirCommonWords) {
  const auto split = [](const std::string& chosen, const std::string& rejected) {
    const Example pair = Chosen(ordered_json{{"chosen", chosen}, {"rejected", rejected}}.dump());
    return std::vector<std::string>{pair.plain.prompt, pair.plain.completion,
                                    pair.rejected->plain.completion};
  };
  using Texts = std::vector<std::string>;

  EXPECT_EQ(split("Human: Hi\n\nAssistant: I think so", "Human: Hi\n\nAssistant: I trust you"),
            (Texts{"Human: Hi\n\nAssistant: I", " think so", " trust you"}));
  EXPECT_EQ(split("the cat s", "the cats"), (Texts{"the", " cat s", " cats"}));
  EXPECT_EQ(split("a foo", "a foo bar"), (Texts{"a", " foo", " foo bar"}));
  EXPECT_EQ(split("yes", "no"), (Texts{"", "yes", "no"}));
}

TEST(PreferenceRows, FaultsNameWhatIsWrong) {
  const std::string good = R"([{"role":"assistant","content":"good"}])";
  const std::string bad = R"([{"role":"assistant","content":"bad"}])";
  const auto openai = [&](const std::string& input, const std::string& a, const std::string& b) {
    return FaultOf(R"({"input":)" + input + R"(,"preferred_output":)" + a +
                       R"(,"non_preferred_output":)" + b + "}",
                   RowFormat::kOpenAiPreference);
  };
  const std::string input = R"({"messages":[{"role":"user","content":"Q"}]})";

  EXPECT_EQ(openai(input, good, bad), "");
  EXPECT_EQ(openai(input, good, good),
            "non_preferred_output is the same as preferred_output, so neither is preferred");
  EXPECT_EQ(openai("[]", good, bad), "'input' must be an object with messages");
  EXPECT_EQ(openai("{}", good, bad), "input.messages is missing");
  EXPECT_EQ(openai(R"({"messages":[]})", good, bad),
            "input.messages must have at least one message");
  EXPECT_NE(openai(R"({"messages":[{"role":"king","content":"Q"}]})", good, bad)
                .find("input.messages[0].role must be"),
            std::string::npos);
  EXPECT_EQ(openai(input, "[]", bad), "preferred_output must have at least one message");
  EXPECT_EQ(openai(input, R"([{"role":"user","content":"x"}])", bad),
            "preferred_output[0] must be a message of the assistant, the answer to the prompt");
  EXPECT_NE(openai(input, good, R"([{"role":"assistant","content":3}])")
                .find("non_preferred_output[0].content must be a string"),
            std::string::npos);

  EXPECT_EQ(FaultOf(R"({"chosen":"a"})"), "'rejected' is missing");
  EXPECT_EQ(FaultOf(R"({"chosen":"a b","rejected":"a b"})"),
            "'rejected' is the same as 'chosen', so neither is preferred");
  EXPECT_EQ(FaultOf(R"({"chosen":" ","rejected":"b"})"),
            "'chosen' is empty, so it has nothing to learn");
  EXPECT_EQ(FaultOf(R"({"chosen":"a","rejected":)" + bad + "}"),
            "'chosen' and 'rejected' must both be texts or both be messages");
  EXPECT_EQ(FaultOf(R"({"chosen":3,"rejected":"b"})"), "chosen must be a list of messages");
  EXPECT_EQ(FaultOf(R"({"chosen":[{"role":"user","content":"Q"},{"role":"assistant","content":"a"}],
                        "rejected":[{"role":"user","content":"R"},
                                    {"role":"assistant","content":"b"}]})"),
            "'rejected' has no message in common with 'chosen': the prompt must be the same");
  EXPECT_NE(
      FaultOf(R"({"chosen":[{"role":"system","content":"S"},{"role":"user","content":"Q"},
                            {"role":"assistant","content":"a"}],
                  "rejected":[{"role":"system","content":"S"},{"role":"user","content":"R"},
                              {"role":"assistant","content":"b"}]})")
          .find(
              "chosen[1] is the first difference of the chats but not a message of the assistant"),
      std::string::npos);
  EXPECT_NE(FaultOf(R"({"chosen":[{"role":"user","content":"Q"}],
                        "rejected":[{"role":"user","content":"Q"},
                                    {"role":"assistant","content":"b"}]})")
                .find("or its prefix"),
            std::string::npos);
}

TEST(PreferenceRows, FormatsAreToldApart) {
  const auto format = [](const std::string& row, const std::vector<std::string>& columns = {}) {
    return DetectFormat(*JsonRows::Of(row, "f"), columns, RowKind::kPairs);
  };

  EXPECT_EQ(format(R"({"prompt":1,"messages":2,"chosen":3,"rejected":4})"), RowFormat::kPreference);
  EXPECT_EQ(format(R"({"input":1,"preferred_output":2,"non_preferred_output":3})"),
            RowFormat::kOpenAiPreference);
  EXPECT_EQ(format(R"({"a":"x","b":"y"})", {"a", "b"}), RowFormat::kPreference);
  EXPECT_EQ(format(R"({"a":{},"b":[],"c":[]})", {"a", "b", "c"}), RowFormat::kOpenAiPreference);
  EXPECT_NE(Fault([&] { format(R"({"messages":1})"); }).find("match no known format of pairs"),
            std::string::npos);
  EXPECT_NE(
      Fault([] {
        DetectFormat(
            *JsonRows::Of(R"({"input":1,"preferred_output":2,"non_preferred_output":3})", "f"), {});
      }).find("kind train.dpo"),
      std::string::npos);
}

Sample Numbers(std::vector<TokenId> prompt, std::vector<TokenId> answer) {
  Sample sample;
  sample.Append(prompt, false);
  sample.Append(answer, true);
  return sample;
}

TEST(JoinPair, KeepsTheEndOfLongPrompts) {
  const Sample pair = JoinPair(Numbers({1, 2, 3, 4}, {5, 6}), Numbers({1, 2, 3, 4}, {7}), 2);

  EXPECT_EQ(pair.tokens, (std::vector<TokenId>{3, 4, 5, 6, 3, 4, 7}));
  EXPECT_EQ(pair.trained, (std::vector<uint8_t>{0, 0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(pair.second, 4u);
  EXPECT_EQ(LongestSequence(pair), 4);
  EXPECT_EQ(TrainedTokens(pair), 3);
  EXPECT_EQ(TrainedTokens(pair, 3), 2);
  EXPECT_EQ(TrainedTokens(pair, 2), 0) << "of the second nothing is left";
}

TEST(JoinPair, RefusesAnswersThatAreTheSameTokens) {
  EXPECT_NE(
      Fault([] { JoinPair(Numbers({1}, {2}), Numbers({1}, {2}), 0); }).find("the same tokens"),
      std::string::npos);
}

// Pair i: a prompt of 4 tokens and answers of 3 + i % 5 and 2 + i % 7 tokens, all with different
// numbers.
Sample NumberedPair(int64_t i) {
  const auto answer = [i](TokenId first, int64_t n) {
    std::vector<TokenId> tokens;
    for (int64_t t = 0; t < n; ++t) {
      tokens.push_back(static_cast<TokenId>(1000 * i + first + t));
    }
    return tokens;
  };
  const std::vector<TokenId> prompt = answer(0, 4);
  return JoinPair(Numbers(prompt, answer(100, 3 + i % 5)), Numbers(prompt, answer(200, 2 + i % 7)),
                  0);
}

TEST(PackerOfPairs, BothAnswersLieInOneRowBehindEachOther) {
  for (const Packing packing : {Packing::kNone, Packing::kFirstFit, Packing::kBestFit}) {
    PackerOptions options;
    options.row_length = 64;
    options.max_sequence = 32;
    options.packing = packing;
    options.n_samples = 20;
    options.n_epochs = 2;
    options.max_segments = 2;  // pairs
    Packer packer(options, NumberedPair);
    std::map<int64_t, int> seen;
    size_t most = 0;
    PackedRow row;
    while (packer.Next(&row)) {
      ASSERT_EQ(row.tokens.size(), 64u);
      most = std::max(most, row.pairs.size());
      for (const int32_t position : row.positions) ASSERT_LT(position, 32) << "padding, too";
      std::vector<size_t> begins = {0};
      for (const int64_t n : row.segment_lengths) begins.push_back(begins.back() + n);
      for (const PackedPair& pair : row.pairs) {
        ++seen[pair.index];
        const auto chosen = static_cast<size_t>(pair.segment);
        const auto first = static_cast<TokenId>(1000 * pair.index);
        for (const size_t segment : {chosen, chosen + 1}) {
          const size_t begin = begins[segment];
          EXPECT_EQ(row.tokens[begin], first);
          EXPECT_EQ(row.positions[begin], 0);
          EXPECT_EQ(row.targets[begin + 2], -1) << "the prompt is read alone";
          EXPECT_EQ(row.targets[begin + 3], first + (segment == chosen ? 100 : 200));
        }
        EXPECT_EQ(row.segment_lengths[chosen], 4 + 3 + pair.index % 5 - 1);
        EXPECT_EQ(row.segment_lengths[chosen + 1], 4 + 2 + pair.index % 7 - 1);
      }
    }
    EXPECT_EQ(most, packing == Packing::kNone ? 1u : 2u);
    ASSERT_EQ(seen.size(), 20u);
    for (const auto& [index, times] : seen) EXPECT_EQ(times, 2) << index;
  }
}

TEST(PackerOfPairs, GoesOnFromEverySavedState) {
  PackerOptions options;
  options.row_length = 64;
  options.max_sequence = 32;
  options.n_samples = 20;
  options.n_epochs = 2;
  options.window = 4;
  Packer whole(options, NumberedPair);
  PackedRow row;
  PackerState state = whole.state();
  while (whole.Next(&row)) {
    Packer resumed(options, NumberedPair);
    resumed.Restore(state);
    PackedRow again;
    ASSERT_TRUE(resumed.Next(&again));
    EXPECT_EQ(again.tokens, row.tokens);
    EXPECT_EQ(again.segment_lengths, row.segment_lengths);
    state = whole.state();
  }
}

TEST(PackerOfPairs, CutsOrDropsAPairAsOne) {
  PackerOptions options;
  options.row_length = 16;
  options.max_sequence = 8;  // pair 4: 7 + 4 - 1 positions; pair 6: 4 + 8 - 1
  options.n_samples = 20;
  options.n_epochs = 1;
  options.overflow = Overflow::kDrop;
  const auto rows = [&](Overflow overflow) {
    options.overflow = overflow;
    Packer packer(options, NumberedPair);
    std::map<int64_t, std::pair<int64_t, int64_t>> lengths;
    PackedRow row;
    while (packer.Next(&row)) {
      for (const PackedPair& pair : row.pairs) {
        lengths[pair.index] = {row.segment_lengths[static_cast<size_t>(pair.segment)],
                               row.segment_lengths[static_cast<size_t>(pair.segment) + 1]};
      }
    }
    return lengths;
  };
  const auto is_long = [](int64_t i) { return 6 + i % 5 > 8 || 5 + i % 7 > 8; };

  const auto dropped = rows(Overflow::kDrop);
  const auto cut = rows(Overflow::kTruncate);

  EXPECT_EQ(cut.size(), 20u);
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(dropped.contains(i), !is_long(i)) << i;
    EXPECT_EQ(cut.at(i).first, std::min<int64_t>(8, 6 + i % 5)) << i;
    EXPECT_EQ(cut.at(i).second, std::min<int64_t>(8, 5 + i % 7)) << i;
  }
  EXPECT_NE(Fault([&] { rows(Overflow::kError); }).find("tokens, but a row holds only 8"),
            std::string::npos);
}

class PairSource : public testing::Test {
 protected:
  std::unique_ptr<RowSource> Open(const std::string& text) {
    options_.example.format = RowFormat::kPreference;
    options_.example.columns = ColumnsOf(RowFormat::kPreference, {});
    EncoderOptions encoder;
    encoder.eos = 258;
    return RowSource::Open(JsonRows::Of(text, "rows"),
                           std::make_shared<const SampleEncoder>(
                               engine::ChatTemplate::Compile(tests::kChatMl), *tokenizer_, encoder),
                           options_, pool_, &report_);
  }

  static std::string Row(const std::string& prompt, const std::string& chosen,
                         const std::string& rejected) {
    return ordered_json{{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}.dump() +
           "\n";
  }

  std::unique_ptr<engine::Tokenizer> tokenizer_ = tests::ChatTokenizer();
  ThreadPool pool_{2};
  RowOptions options_;
  DataReport report_;
};

TEST_F(PairSource, ARowIsOneSampleWithBothAnswers) {
  const Sample pair = Open(Row("Q ", "yes", "no"))->Make(0);

  EXPECT_EQ(pair.second, 6u);
  EXPECT_EQ(pair.tokens,
            (std::vector<TokenId>{'Q', ' ', 'y', 'e', 's', 258, 'Q', ' ', 'n', 'o', 258}));
  EXPECT_EQ(pair.trained, (std::vector<uint8_t>{0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1}));
  EXPECT_EQ(report_.trained_tokens, 7);
  EXPECT_EQ(report_.longest, 6);
}

TEST_F(PairSource, BadAndLongPairsAreCountedAsOne) {
  options_.on_bad_row = OnBadRow::kSkip;
  options_.max_tokens = 8;
  options_.overflow = Overflow::kDrop;
  const std::string rows = Row("Q ", "yes", "no") + Row("Q ", "yes", "yes") +
                           Row("Q ", "yes", "a long answer") + Row("R ", "so", "or so");
  const auto source = Open(rows);

  ASSERT_EQ(source->size(), 2);
  EXPECT_EQ(source->Where(1), "line 4");
  EXPECT_EQ(report_.bad_rows, 1);
  EXPECT_EQ(report_.listed.at(0).where, "line 2");
  EXPECT_EQ(report_.over_length, 1);

  options_.overflow = Overflow::kTruncate;
  options_.max_tokens = 10;
  EXPECT_EQ(Open(rows + Row("A long prompt", "yes", "no"))->size(), 3);
  EXPECT_EQ(report_.zero_loss, 1) << "the answers are cut off with the prompt";

  options_.overflow = Overflow::kError;
  options_.on_bad_row = OnBadRow::kError;
  EXPECT_NE(Fault([&] { Open(rows); }).find("line 3: has 16 tokens, but a row holds only 10"),
            std::string::npos);
}

TEST_F(PairSource, TheHashIsOfEveryTokenAndTheirOrder) {
  const std::string a = Row("Q ", "yes", "no");
  const std::string b = Row("Q ", "no", "yes");
  const auto hash = [&](const std::string& rows) {
    Open(rows);
    return report_.pairs_hash;
  };

  EXPECT_EQ(hash(a + b), hash(a + b));
  EXPECT_NE(hash(a + b), hash(b + a));
  EXPECT_NE(hash(a), hash(b));
}

}  // namespace
}  // namespace tandem::training
