#include "server/cli/manual/man_page.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/app_config.h"
#include "tests/server/cli/manual/verb_doc_fixture.h"

namespace tandem::server {
namespace {

const ManPage& PageNamed(const std::vector<ManPage>& pages, const std::string& name) {
  return *std::find_if(pages.begin(), pages.end(),
                       [&](const ManPage& page) { return page.name == name; });
}

TEST(ManPages, AreOnePerVerbOneOfTheProgramAndOneOfTheConfiguration) {
  const std::vector<ManPage> pages = ManPages(SmallProgram());

  std::vector<std::string> files;
  for (const ManPage& page : pages) files.push_back(page.FileName());
  EXPECT_EQ(files, (std::vector<std::string>{"tandem.1", "tandem-pack.1", "tandem-box.1",
                                             "tandem.yaml.5"}));
}

TEST(ManPages, HaveEveryConventionalSection) {
  const std::vector<ManPage> pages = ManPages(SmallProgram());
  for (const char* section :
       {"NAME", "SYNOPSIS", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"}) {
    EXPECT_NE(PageNamed(pages, "tandem-pack").text.find(std::string(".SH ") + section + "\n"),
              std::string::npos)
        << section;
  }
  EXPECT_NE(PageNamed(pages, "tandem-box").text.find(".SS tandem box ls"), std::string::npos);
}

TEST(ManPages, EscapeWhatTroffWouldInterpret) {
  const std::string text = PageNamed(ManPages(SmallProgram()), "tandem-pack").text;

  EXPECT_NE(text.find("directory [new]: .dot \\(aqquoted\\(aq \\eback"), std::string::npos) << text;
  EXPECT_NE(text.find("\\fB\\-\\-out\\fR \\fIDIR\\fR"), std::string::npos) << text;
}

TEST(ManPages, DescribeEveryKeyOfTheConfigurationFile) {
  const std::vector<ManPage> pages = ManPages(SmallProgram());
  std::string text = PageNamed(pages, "tandem.yaml").text;
  std::erase(text, '\\');

  for (const config::ConfigKey& key : config::ConfigKeys()) {
    EXPECT_NE(text.find("fB" + std::string(key.name) + ":fR"), std::string::npos) << key.name;
  }
}

}  // namespace
}  // namespace tandem::server
