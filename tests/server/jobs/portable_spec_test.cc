#include "server/jobs/portable_spec.h"

#include <gtest/gtest.h>

#include "tests/engine/io/file_helpers.h"

namespace tandem::server {
namespace {

using engine::ExpectError;

TEST(PortableSpec, PathsOfTheDataDirectoryMoveToAnother) {
  const std::string spec =
      R"({"data":{"train":"/srv/a/blobs/file-1"},"base":"/models/x","text":"see /srv/a/blobs",)"
      R"("other":"/srv/ab/c"})";
  const std::string portable = PortableSpec(spec, "/srv/a");
  EXPECT_EQ(portable.find("\"/srv/a/"), std::string::npos) << portable;
  EXPECT_EQ(LocalSpec(portable, "/srv/a"), spec);
  EXPECT_EQ(LocalSpec(portable, "/b"),
            R"({"data":{"train":"/b/blobs/file-1"},"base":"/models/x","text":"see /srv/a/blobs",)"
            R"("other":"/srv/ab/c"})");
}

TEST(PortableSpec, DirectoriesWithOddNamesAreEscapedAsInJson) {
  const std::string spec = R"({"train":"/a \"b\"\\c/blobs/file-1"})";
  EXPECT_EQ(LocalSpec(PortableSpec(spec, "/a \"b\"\\c"), "/d\"/e"),
            R"({"train":"/d\"/e/blobs/file-1"})");
}

// Otherwise a client could name a file of another key by its place in the data directory.
TEST(PortableSpec, ASpecWithTheMarkIsRefused) {
  ExpectError(ErrorCode::kInvalidArgument, {"must not contain"},
              [] { PortableSpec(R"({"train":"{tandem-data-dir}/blobs/file-1"})", "/srv/a"); });
}

}  // namespace
}  // namespace tandem::server
