#include "engine/hub/reference.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

using Names = std::vector<std::string>;

TEST(HubReference, NamesRepositoryRevisionAndFile) {
  const auto plain = ParseHubReference("google/gemma-2-2b-it");
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->repo, "google/gemma-2-2b-it");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(plain->gguf, "");

  const auto all = ParseHubReference("org/name@refs/pr/1:sub/m-Q4_K_M.gguf");
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->revision, "refs/pr/1");
  EXPECT_EQ(all->gguf, "sub/m-Q4_K_M.gguf");
  EXPECT_EQ(all->Text(), "org/name@refs/pr/1:sub/m-Q4_K_M.gguf");
}

TEST(HubReference, TheAddressOfAPageNamesItsRepository) {
  const auto text_of = [](const char* address) {
    const auto reference = ParseHubReference(address);
    return reference ? reference->Text() : std::string("none");
  };
  EXPECT_EQ(text_of("https://huggingface.co/org/name"), "org/name");
  EXPECT_EQ(text_of("http://huggingface.co/org/name/?library=x"), "org/name");
  EXPECT_EQ(text_of("huggingface.co/org/name/tree/main"), "org/name");
  EXPECT_EQ(text_of("https://hf.co/org/name/tree/v1.0"), "org/name@v1.0");
  EXPECT_EQ(text_of("https://huggingface.co/org/name/blob/main/sub/m.gguf"), "org/name:sub/m.gguf");
  EXPECT_EQ(text_of("https://huggingface.co/org/name/blob/main/config.json"), "none");
  EXPECT_EQ(text_of("https://huggingface.co/org/name/discussions/1"), "none");
  EXPECT_EQ(text_of("https://huggingface.co/org"), "none");
  EXPECT_EQ(text_of("https://huggingface.co/org/name/tree/.."), "none");
  EXPECT_EQ(text_of("https://example.com/org/name"), "none");
}

TEST(HubReference, PathsAndTricksAreNone) {
  for (const char* text : {"",
                           "name",
                           "/org/name",
                           "./org/name",
                           "../name",
                           "org/..",
                           "org/name/more",
                           "org/",
                           "/name",
                           "org/na me",
                           "org/name@",
                           "org/name@../x",
                           "org/name@a//b",
                           "org/name@/x",
                           "org/name@a/",
                           "org/name@-x",
                           "org/name@a\nb",
                           "org/name:",
                           "org/name:../x.gguf",
                           "org/name:/x.gguf",
                           "org/na--me",
                           "org/name.git",
                           "org/name.",
                           "-org/name",
                           "org/name@x/.y",
                           "o\\g/name"}) {
    EXPECT_FALSE(ParseHubReference(text).has_value()) << text;
  }
}

TEST(HubFileNames, StayBelowTheirFolder) {
  for (const char* name : {"config.json", "a/b/c.gguf", "model-00001-of-00002.safetensors"}) {
    EXPECT_TRUE(IsSafeFileName(name)) << name;
  }
  for (const char* name : {"", "/a", "../a", "a/../b", "a/..", "a//b", "a/", ".", "..", "./a",
                           ".hidden", "a\\b", "a\nb", "a/b/c/d/e/f"}) {
    EXPECT_FALSE(IsSafeFileName(name)) << name;
  }
  EXPECT_FALSE(IsSafeFileName(std::string(300, 'a')));
  EXPECT_FALSE(IsSafeFileName(std::string("a\0b", 3)));
}

TEST(HubSelection, TakesTheModelAndNothingElse) {
  const HubReference reference{"org/name", "main", ""};
  const FileSelection selection =
      SelectFiles(reference, {"README.md", "config.json", "tokenizer.json", "model.safetensors",
                              "pytorch_model.bin", "onnx/model.safetensors", "training_args.bin",
                              "chat_template.jinja", "consolidated.safetensors",
                              "1_Pooling/config.json", "2_Dense/config.json"});

  EXPECT_EQ(selection.texts, (Names{"1_Pooling/config.json", "chat_template.jinja", "config.json",
                                    "tokenizer.json"}));
  EXPECT_EQ(selection.weights, Names{"model.safetensors"});
}

TEST(HubSelection, WithoutSafetensorsSaysWhatThereIs) {
  const HubReference reference{"org/name", "main", ""};
  const auto refusal = [&](const Names& names) -> std::pair<ErrorCode, std::string> {
    try {
      SelectFiles(reference, names);
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    return {ErrorCode::kInternal, "nothing was thrown"};
  };

  const auto pickles = refusal({"config.json", "pytorch_model.bin", "model.pt"});
  EXPECT_EQ(pickles.first, ErrorCode::kUnsupported);
  EXPECT_NE(pickles.second.find("pytorch_model.bin, model.pt"), std::string::npos);
  const auto ggufs = refusal({"config.json", "m-Q8_0.gguf"});
  EXPECT_EQ(ggufs.first, ErrorCode::kNotFound);
  EXPECT_NE(ggufs.second.find("org/name:FILE from: m-Q8_0.gguf"), std::string::npos);
  EXPECT_EQ(refusal({"README.md"}).first, ErrorCode::kNotFound);
}

TEST(HubSelection, GgufFilesAreFoundByNameOrTag) {
  const Names names{"m-Q4_K_M.gguf",
                    "m-Q4_K_S.gguf",
                    "m-IQ4_K_M.gguf",
                    "mmproj-Q8_0.gguf",
                    "m-Q8_0.gguf",
                    "BF16/m-BF16-00002-of-00002.gguf",
                    "BF16/m-BF16-00001-of-00002.gguf"};
  const auto select = [&](const char* gguf) {
    return SelectFiles({"org/name", "main", gguf}, names).weights;
  };

  EXPECT_EQ(select("m-Q4_K_S.gguf"), Names{"m-Q4_K_S.gguf"});
  EXPECT_EQ(select("q4_k_m"), Names{"m-Q4_K_M.gguf"});
  EXPECT_EQ(select("Q8_0"), Names{"m-Q8_0.gguf"});
  EXPECT_EQ(select("BF16"),
            (Names{"BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"}));
  EXPECT_THROW(select("Q2_K"), Error);
  EXPECT_THROW(select("m"), Error);  // several
  EXPECT_THROW(select("Q4_K"), Error);
}

TEST(HubSelection, GgufNamesSayHowManyPartsThereAre) {
  EXPECT_EQ(PartsOfGguf("a/m-00001-of-00012.gguf"), 12);
  EXPECT_EQ(PartsOfGguf("m-0001-of-00012.gguf"), 1);
  EXPECT_EQ(PartsOfGguf("m-00001-of-0x012.gguf"), 1);
  EXPECT_EQ(PartsOfGguf("m.gguf"), 1);
}

TEST(HubIndex, NamesPlainSafetensorsOnly) {
  EXPECT_EQ(ShardsOfIndex(R"({"weight_map":{"a":"2.safetensors","b":"1.safetensors",
                              "c":"2.safetensors"}})",
                          "index"),
            (Names{"1.safetensors", "2.safetensors"}));
  for (const char* text :
       {"[]", "{}", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"../1.safetensors"}})", R"({"weight_map":{"a":"x/1.safetensors"}})",
        R"({"weight_map":{"a":"/1.safetensors"}})", R"({"weight_map":{"a":"weights.bin"}})"}) {
    EXPECT_THROW(ShardsOfIndex(text, "index"), Error) << text;
  }
}

TEST(HubTokenizer, ComesInOneOfSeveralFiles) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "qwen.tiktoken", "vocab.json"}) {
    EXPECT_TRUE(HasTokenizer({"config.json", name})) << name;
  }
  EXPECT_FALSE(HasTokenizer({"config.json", "tokenizer_config.json", "merges.txt"}));
  EXPECT_FALSE(HasTokenizer({}));
}

}  // namespace
}  // namespace tandem::engine
