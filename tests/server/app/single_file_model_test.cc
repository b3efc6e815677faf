#include <fstream>

#include "tests/server/app/app_fixture.h"
#include "tests/support/gguf_writer.h"

// Serves a model from another program's file.
namespace tandem::server {
namespace {

TEST_F(AppTest, AGgufFileIsServedWithItsTokenizerAndTemplate) {
  for (const engine::Encoding encoding : {engine::Encoding::kPlain, engine::Encoding::kQ8_0}) {
    const std::filesystem::path file =
        directory_->path() / (std::string(engine::EncodingName(encoding)) + ".gguf");
    tests::ConvertToGguf(directory_->path() / "tiny",
                         {.matrices = encoding, .with_vocabulary = true})
        .Write(file);
    AppOptions options = Defaults();
    options.models = {{"from-gguf", file.string()}};
    StartApp(std::move(options));

    const Json completion = PostJson(
        "/v1/completions",
        {{"model", "from-gguf"}, {"prompt", "ab a"}, {"max_tokens", 8}, {"temperature", 0}});
    EXPECT_EQ(completion["usage"]["prompt_tokens"], 4) << "BOS, a space with a, b, a space with a";
    EXPECT_GE(completion["usage"]["completion_tokens"], 1);
    Json chat = Chat("ab");
    chat["model"] = "from-gguf";
    EXPECT_GE(PostJson("/v1/chat/completions", chat)["usage"]["completion_tokens"], 1);
    app_.reset();
  }
}

TEST_F(AppTest, AFileThatIsNoModelIsNamed) {
  const std::filesystem::path file = directory_->path() / "note.gguf";
  std::ofstream(file) << "not a model";
  AppOptions options = Defaults();
  options.models = {{"", file.string()}};
  try {
    StartApp(std::move(options));
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("neither GGUF nor llama2.c"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tandem::server
