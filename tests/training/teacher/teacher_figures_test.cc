// The file of a teacher's figures: whole, cut and damaged.

#include "training/teacher/teacher_figures.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace tandem::training {
namespace {

const TeacherHeader kFiguresHeader{"teacher", "abc", 2};

std::vector<ScoredSample> FirstSamples() {
  return {{7, {1, 2, 3, 4}, {-0.5f, -1, -0.25f, -2}}, {3, {9, 8}, {-0.125f, -3}}};
}

std::string WholeFigures() {
  const std::vector<ScoredSample> second = {{0, {5, 6}, {0, -20}}};
  return EncodeTeacherHeader(kFiguresHeader) + EncodeTeacherFrame(FirstSamples(), "fp_1") +
         EncodeTeacherFrame(second, "") + EncodeTeacherEnd();
}

TeacherFigures ReadFigures(const std::string& text) {
  const auto bytes = std::make_shared<const std::string>(text);
  return {bytes, std::as_bytes(std::span(*bytes)), "figures"};
}

TEST(TeacherFigures, AreReadAsTheyWereWritten) {
  const TeacherFigures figures = ReadFigures(WholeFigures());
  EXPECT_EQ(figures.header(), kFiguresHeader);
  EXPECT_TRUE(figures.is_complete());
  EXPECT_EQ(figures.whole_bytes(), WholeFigures().size());
  EXPECT_EQ(figures.fingerprint(), "fp_1");
  EXPECT_EQ(figures.size(), 3u);
  EXPECT_EQ(figures.TokensOf(7), 2);
  EXPECT_EQ(figures.TokensOf(3), 1);
  EXPECT_EQ(figures.TokensOf(1), -1);
  TokenId ids[2];
  float logprobs[2];
  figures.Copy(7, 1, ids, logprobs);
  EXPECT_EQ(ids[0], 3);
  EXPECT_EQ(ids[1], 4);
  EXPECT_EQ(logprobs[0], -0.25f);
  EXPECT_EQ(logprobs[1], -2.0f);
  figures.Copy(0, 0, ids, logprobs);
  EXPECT_EQ(ids[1], 6);
  EXPECT_EQ(logprobs[1], -20.0f);
}

TEST(TeacherFigures, CutAnywhereKeepTheirWholeFrames) {
  const std::string text = WholeFigures();
  const size_t header = EncodeTeacherHeader(kFiguresHeader).size();
  const size_t first = header + EncodeTeacherFrame(FirstSamples(), "fp_1").size();
  for (size_t size = header; size < text.size(); ++size) {
    const TeacherFigures figures = ReadFigures(text.substr(0, size));
    EXPECT_FALSE(figures.is_complete()) << size;
    EXPECT_LE(figures.whole_bytes(), size);
    EXPECT_EQ(figures.Has(7), size >= first) << size;
    EXPECT_FALSE(figures.Has(0) && size < first);
  }
}

TEST(TeacherFigures, ADamagedByteDropsItsFrameAndAllAfterIt) {
  const std::string text = WholeFigures();
  const size_t header = EncodeTeacherHeader(kFiguresHeader).size();
  for (size_t at = header; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    const TeacherFigures figures = ReadFigures(damaged);
    EXPECT_FALSE(figures.is_complete() && figures.whole_bytes() == text.size() &&
                 figures.size() == 3u)
        << at;
  }
}

TEST(TeacherFigures, OtherFilesAreRefused) {
  for (const std::string& text :
       {std::string(), std::string("no header"), std::string("{}\n"), std::string("[1]\n"),
        std::string(R"({"format":"tandem-teacher","version":2,"top_k":1})") + "\n",
        std::string(R"({"format":"tandem-teacher","version":1,"top_k":0})") + "\n",
        std::string(20000, ' ')}) {
    try {
      ReadFigures(text);
      ADD_FAILURE() << text.substr(0, 40);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss) << error.what();
    }
  }
}

}  // namespace
}  // namespace tandem::training
