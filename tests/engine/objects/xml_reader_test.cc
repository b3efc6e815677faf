#include "engine/objects/xml_reader.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

bool IsRefused(const std::string& text) {
  try {
    ParseXml(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataLoss) << error.what();
    return true;
  }
  return false;
}

std::string Nested(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += "<a>";
  for (int i = 0; i < n; ++i) text += "</a>";
  return text;
}

TEST(XmlReader, ReadsElementsAttributesAndReferences) {
  const XmlElement root = ParseXml(
      "\xef\xbb\xbf<?xml version=\"1.0\"?>\n<!-- c --><L xmlns=\"http://x/\" b='>'>\n"
      "<n:Key>a&amp;b&#x41;&#228;</n:Key><Empty/><Key>2</Key></L>\n");

  EXPECT_EQ(root.name, "L");
  ASSERT_EQ(root.children.size(), 3u);
  EXPECT_EQ(root.TextOf("Key"), "a&bA\xc3\xa4");
  EXPECT_EQ(root.Find("Empty")->text, "");
  EXPECT_EQ(root.Find("Absent"), nullptr);
}

TEST(XmlReader, RefusesDocumentTypesAndUnknownEntities) {
  EXPECT_TRUE(IsRefused("<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>"));
  EXPECT_TRUE(IsRefused("<a>&b;</a>"));
  EXPECT_TRUE(IsRefused("<a><![CDATA[x]]></a>"));
  EXPECT_TRUE(IsRefused("<a>&#0;</a>"));
  EXPECT_TRUE(IsRefused("<a>&#xD800;</a>"));
  EXPECT_TRUE(IsRefused("<a>&#x110000;</a>"));
  EXPECT_TRUE(IsRefused("<a>&#99999999999999999999;</a>"));
}

TEST(XmlReader, BoundsDepthAndNumberOfElements) {
  EXPECT_FALSE(IsRefused(Nested(16)));
  EXPECT_TRUE(IsRefused(Nested(17)));
  EXPECT_TRUE(IsRefused(Nested(1'000'000)));
  std::string wide = "<a>";
  for (int i = 0; i < 100'001; ++i) wide += "<b/>";
  EXPECT_TRUE(IsRefused(wide + "</a>"));
}

TEST(XmlReader, RefusesEveryBeginningOfADocument) {
  const std::string whole = "<?xml version=\"1.0\"?><a x=\"1\"><b>c&amp;d</b><!-- e --><f/></a>";
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_TRUE(IsRefused(whole.substr(0, n))) << n;
  }
  EXPECT_FALSE(IsRefused(whole));
  EXPECT_TRUE(IsRefused(whole + "<g/>"));
  EXPECT_TRUE(IsRefused("<a></b>"));
}

// Any bytes are parsed or refused; nothing else may happen.
TEST(XmlReader, SurvivesChangedBytes) {
  const std::string whole =
      "<?xml version=\"1.0\"?><List a='b'><Key>c&amp;d&#x41;</Key><!-- e --><f/></List>";
  const unsigned seed = 20261124;
  std::mt19937 random(seed);
  for (int round = 0; round < 20'000; ++round) {
    std::string text = whole;
    for (int n = 0; n < 3; ++n) text[random() % text.size()] = static_cast<char>(random() % 256);
    IsRefused(text);
  }
}

TEST(XmlReader, EscapesText) { EXPECT_EQ(XmlEscaped("<\"a&b\">"), "&lt;&quot;a&amp;b&quot;&gt;"); }

}  // namespace
}  // namespace tandem::engine
