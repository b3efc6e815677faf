#include "engine/model/family_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/paths.h"

namespace tandem::engine {
namespace {

TEST(FamilyTable, TheReadmeShowsIt) {
  std::ifstream file(tests::SourceDir() / "README.md");
  std::ostringstream text;
  text << file.rdbuf();

  EXPECT_NE(text.str().find(FamilyTable()), std::string::npos) << "README.md must hold exactly:\n"
                                                               << FamilyTable();
}

// The other table has words on each family. It names its file, so the two cannot grow apart.
TEST(FamilyTable, TheReadmeOfThisRoomHasARowForEachFamily) {
  std::ifstream file(tests::SourceDir() / "engine" / "model" / "README.md");
  std::ostringstream text;
  text << file.rdbuf();
  for (const FamilySpec* family : Families()) {
    const std::string cell = "| `" + std::string(family->name) + ".cc` |";
    EXPECT_NE(text.str().find(cell), std::string::npos) << "engine/model/README.md lacks " << cell;
  }
}

TEST(FamilyTable, EveryFamilyHasModelsOfItsOwn) {
  std::set<std::string> seen;
  for (const FamilySpec* family : Families()) {
    EXPECT_FALSE(family->models.empty()) << family->name;
    EXPECT_LE(family->models.size(), 44u) << family->name;
    EXPECT_TRUE(seen.emplace(family->models).second) << family->models;
  }
}

}  // namespace
}  // namespace tandem::engine
