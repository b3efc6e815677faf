#include "server/database/postgres_sql.h"

#include <gtest/gtest.h>

#include "server/database/schema.h"

namespace tandem::server {
namespace {

TEST(PostgresSql, NumbersParametersAndKeepsTexts) {
  EXPECT_EQ(PostgresStatement("SELECT a FROM t WHERE a = ? AND b = ?"),
            "SELECT a FROM t WHERE a = $1 AND b = $2");
  EXPECT_EQ(PostgresStatement("?2 ?1 ?12"), "$2 $1 $12");
  EXPECT_EQ(PostgresStatement("'it''s ?' \"?\" ? -- ?\n?"), "'it''s ?' \"?\" $1 -- ?\n$2");
  EXPECT_EQ(PostgresStatement("'unclosed ?"), "'unclosed ?");
  EXPECT_EQ(PostgresStatement("{now_ms}").find('{'), std::string::npos);
}

TEST(PostgresSql, TranslatesEveryStepOfTheServer) {
  for (const char* step : ServerSchema().steps) {
    const std::string text = PostgresSchemaStep(step);
    for (const char* word : {"INTEGER", "AUTOINCREMENT", "STRICT"}) {
      EXPECT_EQ(text.find(word), std::string::npos) << text;
    }
  }
}

TEST(PostgresSql, TextsBecomeValid) {
  EXPECT_EQ(PostgresText("ünï"), "ünï");
  EXPECT_EQ(PostgresText(std::string_view("a\0b", 3)),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(PostgresText("\xFFx\xC3"), "\xEF\xBF\xBDx\xEF\xBF\xBD");
}

}  // namespace
}  // namespace tandem::server
