#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/families/family.h"
#include "tests/support/paths.h"
#include "tests/support/sources.h"

// A model family is one file in engine/model/families. No other code of the program knows a
// family's name. Comments may name families as examples.

namespace tandem::tests {
namespace {

constexpr std::string_view kFamilies = "engine/model/families/";

// Names of other things that are spelled like a family.
struct Exception {
  std::string_view path;  // of the files, from the beginning
  std::string_view name;  // empty: every name
  std::string_view reason;
};
constexpr auto kExceptions = std::to_array<Exception>({
    {"engine/tokenizer/", "gpt2", "libraries name the byte-level split after GPT-2"},
    {"engine/tokenizer/readers/tokenizer_classes.cc", "", "the libraries' names of tokenizers"},
    {"engine/chat/answers/tool_format.cc", "", "formats of tool calls have their families' names"},
    {"engine/formats/gguf/gguf_pretokenizers.", "", "GGUF's names of tokenizers"},
    {"engine/formats/llama2c/", "", "files of llama2.c hold models of this family only"},
    {"server/handlers/endpoints.cc", "llama", "llama-server is a program of llama.cpp"},
    {"server/handlers/llama_server/", "llama", "the same"},
    {"server/respond/llama_server_renderer.", "llama", "the same"},
    {"server/wire/llama_server/", "llama", "the same"},
    {"server/deploy/templates.cc", "gemma2", "the presets' files have their model's name"},
    {"server/deploy/variables.cc", "", "defaults are the model and tokenizer of the preset"},
    {"training/examples/", "", "an example chooses a family, as a user of the library does"},
});

// The code without comments. String literals stay.
std::string CodeOf(const std::string& file) {
  std::ifstream stream(SourceDir() / file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::string code;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quote != 0) {
      code += text[i];
      if (text[i] == '\\' && i + 1 < text.size())
        code += text[++i];
      else if (text[i] == quote || text[i] == '\n')
        quote = 0;
    } else if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (text.compare(i, 2, "/*") == 0) {
      i = std::min(text.find("*/", i), text.size() - 2) + 1;
    } else {
      // A digit before it: the separator of a number.
      const bool is_separator =
          text[i] == '\'' && i > 0 && std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0;
      if (text[i] == '"' || (text[i] == '\'' && !is_separator)) quote = text[i];
      code += text[i];
    }
  }
  return code;
}

// The words of identifiers and texts in lower case, one list for each run of letters and digits:
// "kMiniGptFamily" is {"k", "mini", "gpt", "family"}.
std::vector<std::vector<std::string>> WordsOf(const std::string& code) {
  std::vector<std::vector<std::string>> runs;
  char before = ' ';
  for (const char c : code) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_word = std::isalnum(byte) != 0;
    const bool was_word = std::isalnum(static_cast<unsigned char>(before)) != 0;
    if (is_word && !was_word) runs.emplace_back();
    const bool begins =
        is_word && (!was_word || (std::isupper(byte) != 0 &&
                                  std::isupper(static_cast<unsigned char>(before)) == 0));
    if (begins) runs.back().emplace_back();
    if (is_word) runs.back().back() += static_cast<char>(std::tolower(byte));
    before = c;
  }
  return runs;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// The families' names and architectures in lower case.
std::set<std::string> FamilyWords() {
  std::set<std::string> names;
  for (const engine::FamilySpec* family : engine::Families()) {
    names.insert(Lower(family->name));
    for (const std::string_view architecture : family->architectures) {
      names.insert(Lower(architecture));
    }
  }
  return names;
}

// The names that neighbouring words of a run spell.
std::set<std::string> NamesIn(const std::string& code, const std::set<std::string>& names) {
  std::set<std::string> found;
  for (const std::vector<std::string>& words : WordsOf(code)) {
    for (size_t first = 0; first < words.size(); ++first) {
      std::string joined;
      for (size_t last = first; last < words.size(); ++last) {
        joined += words[last];
        if (names.contains(joined)) found.insert(joined);
      }
    }
  }
  return found;
}

bool IsProgram(const std::string& file) {
  constexpr auto kTops =
      std::to_array<std::string_view>({"engine/", "server/", "training/", "convert/"});
  return std::any_of(kTops.begin(), kTops.end(),
                     [&](std::string_view top) { return file.starts_with(top); }) &&
         !file.starts_with(kFamilies);
}

TEST(FamilyNames, StandInTheFamiliesFilesOnly) {
  const std::set<std::string> names = FamilyWords();
  std::set<std::string_view> used;
  int files = 0;
  for (const std::string& file : Sources()) {
    if (!IsProgram(file)) continue;
    ++files;
    for (const std::string& name : NamesIn(CodeOf(file), names)) {
      const auto exception =
          std::find_if(kExceptions.begin(), kExceptions.end(), [&](const Exception& each) {
            return file.starts_with(each.path) && (each.name.empty() || each.name == name);
          });
      EXPECT_NE(exception, kExceptions.end())
          << file << " names the family '" << name
          << "'; make it data of its FamilySpec in engine/model/families";
      if (exception != kExceptions.end()) used.insert(exception->path);
    }
  }
  EXPECT_GT(files, 500);

  for (const Exception& exception : kExceptions) {
    EXPECT_TRUE(used.contains(exception.path)) << exception.path << " needs no exception";
  }
}

TEST(FamilyNames, AreFoundInIdentifiersAndTextsButNotInComments) {
  const std::set<std::string> names = {"llama", "minigpt", "gpt2"};
  const auto found = [&](const std::string& code) { return NamesIn(code, names); };

  EXPECT_EQ(found("kLlamaParts"), (std::set<std::string>{"llama"}));
  EXPECT_EQ(found("TinyMiniGptConfig()"), (std::set<std::string>{"minigpt"}));
  EXPECT_EQ(found("\"minigpt, gpt2 or LlamaForCausalLM\""),
            (std::set<std::string>{"gpt2", "llama", "minigpt"}));
  EXPECT_EQ(found("RopeKind::kLlama3, Llama2cModel, minigpts"), std::set<std::string>());
}

}  // namespace
}  // namespace tandem::tests
