#include "server/handlers/text_budget.h"

#include <gtest/gtest.h>

namespace tandem::server {
namespace {

TEST(TextBudget, EndsTheWorkOnceMoreTextThanItHoldsIsSpent) {
  TextBudget budget(10, [] { return false; });

  EXPECT_FALSE(budget.Spend(6));
  EXPECT_FALSE(budget.Spend(4));
  EXPECT_FALSE(budget.is_exceeded());
  EXPECT_TRUE(budget.Spend(1));
  EXPECT_TRUE(budget.is_exceeded());
  EXPECT_TRUE(budget.Spend(0)) << "it stays exceeded";
}

TEST(TextBudget, EndsTheWorkOfARequestThatIsOver) {
  bool is_over = false;
  TextBudget budget(10, [&] { return is_over; });
  EXPECT_FALSE(budget.Spend(1));

  is_over = true;

  EXPECT_TRUE(budget.Spend(1));
  EXPECT_FALSE(budget.is_exceeded()) << "another reason";
}

}  // namespace
}  // namespace tandem::server
