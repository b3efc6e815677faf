// Prefix cache entries of one adapter are read by that adapter only.

#include <string>
#include <thread>
#include <vector>

#include "engine/io/atomic_write.h"
#include "tests/server/app/app_adapters_fixture.h"

namespace tandem::server {
namespace {

class AppAdaptersCache : public AppAdaptersTest {
 protected:
  struct Answer {
    std::string choices;  // text and log-probabilities
    int64_t cached = 0;   // prompt tokens from the cache
  };
  Answer Long(const std::string& model) {
    Json body = Chat(
        "The same long beginning, again and again. It fills several blocks of keys and "
        "values, and whoever reads another's would say something else.");
    body["model"] = model;
    body["logprobs"] = true;
    const Json answer = PostJson("/v1/chat/completions", body);
    return {answer["choices"].dump(),
            answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>()};
  }
};

TEST_F(AppAdaptersCache, APrefixIsReadByTheWeightsThatMadeItAlone) {
  AppOptions cold = WithAdmin();
  cold.engine.prefix_cache = false;
  StartApp(std::move(cold));
  Load("one", "one");
  Load("two", "two");
  const std::string base = Long("tiny").choices;
  const std::string one = Long("one").choices;
  const std::string two = Long("two").choices;
  ASSERT_NE(one, two);
  ASSERT_NE(one, base);
  app_.reset();
  StartApp(WithAdmin());
  const auto expect = [&](const std::string& model, const std::string& choices, bool is_warm) {
    SCOPED_TRACE(model + (is_warm ? " warm" : " cold"));
    const Answer answer = Long(model);
    EXPECT_EQ(answer.choices, choices);
    EXPECT_EQ(answer.cached > 0, is_warm) << answer.cached;
  };

  Load("x", "one");
  Load("y", "two");
  expect("x", one, false);
  expect("x", one, true);
  expect("y", two, false);
  expect("tiny", base, false);
  expect("y", two, true);
  expect("tiny", base, true);

  // Other weights under the same name do not read the entries of the old ones, …
  tests::WriteRandomAdapter(directory_->path() / "tiny", 4, 9, directory_->path() / "nine");
  Load("x", "nine", true);
  const Answer nine = Long("x");
  EXPECT_EQ(nine.cached, 0);
  EXPECT_NE(nine.choices, one);
  // … nor do weights that differ in their scale only, …
  const auto config = directory_->path() / "nine" / "adapter_config.json";
  Json scaled = Json::parse(engine::ReadWholeFile(config, 1 << 20));
  scaled["lora_alpha"] = 3 * scaled["lora_alpha"].get<double>();
  engine::WriteFileAtomically(config, scaled.dump());
  Load("x", "nine", true);
  const Answer stronger = Long("x");
  EXPECT_EQ(stronger.cached, 0);
  EXPECT_NE(stronger.choices, nine.choices);
  // … but reloaded weights find their own entries, under any name.
  Load("x", "one", true);
  expect("x", one, true);
  Load("again", "one");
  expect("again", one, true);
  EXPECT_EQ(Admin("/admin/adapters/unload", {{"name", "y"}}).status, 200);
  Load("y", "one");
  expect("y", one, true);
}

// A request waits for another's prefix only within one adapter.
TEST_F(AppAdaptersCache, RequestsOfOneMomentShareNoPrefixAcrossAdapters) {
  StartApp(WithAdmin());
  Load("one", "one");
  Load("two", "two");
  Json body = {{"prompt", std::string(120, 'a')},
               {"max_tokens", 8},
               {"temperature", 0},
               {"logprobs", 1},
               {"n", 3}};
  const auto ask = [&](const std::string& model) {
    body["model"] = model;
    return PostJson("/v1/completions", body)["choices"].dump();
  };
  const std::vector<std::string> names = {"tiny", "one", "two"};
  std::vector<std::string> alone;
  for (const std::string& name : names) alone.push_back(ask(name));
  app_.reset();
  StartApp(WithAdmin());
  Load("one", "one");
  Load("two", "two");
  std::vector<std::string> answers(names.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < names.size(); ++i) {
    clients.emplace_back([&, i] {
      Json mine = body;
      mine["model"] = names[i];
      answers[i] = PostJson("/v1/completions", mine)["choices"].dump();
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answers, alone);
}

}  // namespace
}  // namespace tandem::server
