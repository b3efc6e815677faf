#include "server/cli/manual/help.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "server/cli/manual/completion_scripts.h"
#include "server/cli/manual/help_text.h"
#include "server/cli/manual/man_page.h"
#include "server/cli/manual/usage.h"
#include "server/terminal/terminal.h"

namespace tandem::server {
namespace {

class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override {
    return HelpText(DescribeVerb(*app), TerminalWidth(STDOUT_FILENO));
  }
};

void WriteOut(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void WritePages(const std::vector<ManPage>& pages, const std::filesystem::path& dir) {
  for (const ManPage& page : pages) {
    const std::filesystem::path folder = dir / ("man" + std::to_string(page.section));
    std::filesystem::create_directories(folder);
    const std::filesystem::path file = folder / page.FileName();
    engine::WriteFileAtomically(file, page.text);
    std::printf("%s\n", file.c_str());
  }
}

const ManPage& FindPage(const std::vector<ManPage>& pages, const std::string& name) {
  std::vector<std::string> names;
  for (const ManPage& page : pages) {
    if (page.name == name || page.name == "tandem-" + name) return page;
    names.push_back(page.name.substr(page.name.starts_with("tandem-") ? 7 : 0));
  }
  throw Error(ErrorCode::kInvalidArgument,
              "there is no manual page '" + name.substr(0, 80) + "'" + DidYouMean(name, names) +
                  "\nPages are those of the verbs, 'tandem' and 'tandem.yaml'.");
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> MakeHelpFormatter() {
  return std::make_shared<HelpFormatter>();
}

void AddHelp(CLI::App& command, int&) {
  const auto words = std::make_shared<std::vector<std::string>>();
  command.add_option("verb", *words, "the verb to explain; none: list the verbs");
  command.callback([&command, words] {
    const CLI::App& verb = FindVerb(*command.get_parent(), *words);
    WriteOut(HelpText(DescribeVerb(verb), TerminalWidth(STDOUT_FILENO)));
  });
}

void AddMan(CLI::App& command, int&) {
  struct ManFlags {
    std::string page = "tandem";
    std::string dir;
  };
  const auto flags = std::make_shared<ManFlags>();
  auto* const page = command.add_option(
      "page", flags->page, "a verb, 'tandem', or 'tandem.yaml' for the configuration file");
  page->capture_default_str();
  command.add_option("--dir", flags->dir, "write all pages to DIR/man1 and DIR/man5 instead")
      ->type_name("DIR")
      ->excludes(page);
  command.callback([&command, flags] {
    const std::vector<ManPage> pages = ManPages(DescribeVerb(*command.get_parent()));
    if (!flags->dir.empty()) return WritePages(pages, flags->dir);
    WriteOut(FindPage(pages, flags->page).text);
  });
}

void AddCompletion(CLI::App& command, int&) {
  const auto shell = std::make_shared<std::string>();
  command.add_option("shell", *shell, "the shell that reads the script")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command.footer(
      "The script needs no running program. Where shells look for it:\n"
      "  bash  ~/.local/share/bash-completion/completions/tandem\n"
      "  zsh   _tandem in a directory of $fpath\n"
      "  fish  ~/.config/fish/completions/tandem.fish");
  command.callback([&command, shell] {
    const VerbDoc root = DescribeVerb(*command.get_parent());
    WriteOut(*shell == "bash"  ? BashCompletion(root)
             : *shell == "zsh" ? ZshCompletion(root)
                               : FishCompletion(root));
  });
}

}  // namespace tandem::server
