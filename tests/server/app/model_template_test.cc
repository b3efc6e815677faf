// Models with a chat template that is unusable, or unusable for some chats.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

TEST_F(AppTest, AModelsBrokenTemplateIsReportedWithItsOwnFault) {
  const tests::TemporaryDir directory;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{{ messages[0].content }}\n{% include 'x' %}", "line 2, column 4: the statement 'include'"},
      {"a{{ messages[0].content | nofilter }}", "line 1, column 27: unknown filter 'nofilter'"},
      {"{% if false %}{{ x | nofilter }}{% endif %}{{ messages[0].content }}", ""}};
  AppOptions options = Defaults();
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto path = directory.path() / ("m" + std::to_string(i));
    std::filesystem::create_directory(path);
    tests::TinyModelOptions model;
    model.chat_template = cases[i].first;
    tests::WriteTinyModel(path, model);
    options.models.push_back({"m" + std::to_string(i), path.string()});
  }
  StartApp(std::move(options));

  for (size_t i = 0; i < cases.size(); ++i) {
    Json request = Chat("hello");
    request["model"] = "m" + std::to_string(i);
    const bool works = cases[i].second.empty();
    const Json body = PostJson("/v1/chat/completions", request, works ? 200 : 400);
    if (works) continue;
    const std::string message = body["error"]["message"];
    EXPECT_NE(message.find(cases[i].second), std::string::npos) << message;
    EXPECT_EQ(message.find("has no chat template"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace tandem::server
