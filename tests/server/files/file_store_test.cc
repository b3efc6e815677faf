#include "server/files/file_store.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "server/database/database.h"
#include "tests/support/full_disk.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

class FileStoreTest : public testing::Test {
 protected:
  void Open() {
    store_.reset();
    store_ = std::make_unique<FileStore>(FileStore::Options{
        .data_dir = dir_.path(),
        .now = [this] { return now_; },
        .is_in_use = [this](const std::string& id) { return in_use_.contains(id); }});
  }
  StoredFile Add(const std::string& bytes, const std::string& purpose = "fine-tune",
                 std::optional<int64_t> expires_after_s = {}) {
    TemporaryFile file = store_->BeginFile();
    file.Write(bytes);
    return store_->Add(std::move(file), {"x.jsonl", purpose, expires_after_s});
  }
  void Sql(const std::string& text) {
    Database database(dir_.path() / "tandem.db");
    Query(database.Prepare(text)).Next();
  }
  std::vector<std::string> OnDisk() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path() / "files")) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  std::filesystem::path Files() const { return dir_.path() / "files"; }
  static std::string Text(const std::filesystem::path& path) {
    std::string text;
    std::ifstream in(path);
    std::getline(in, text);
    return text;
  }
  static std::vector<std::string> Ids(const FilePage& page) {
    std::vector<std::string> ids;
    for (const StoredFile& file : page.files) ids.push_back(file.id);
    return ids;
  }
  template <class Action>
  static std::string ReasonOf(Action action) {
    try {
      action();
    } catch (const Error& error) {
      return error.reason();
    }
    return "nothing was thrown";
  }

  tests::TemporaryDir dir_;
  int64_t now_ = 1000;
  std::set<std::string> in_use_;
  std::unique_ptr<FileStore> store_;
};

TEST_F(FileStoreTest, AViewerSeesItsOwnFilesAndNobodys) {
  Open();
  const auto add = [&](std::optional<int64_t> owner) {
    TemporaryFile file = store_->BeginFile();
    file.Write("x");
    NewFile about;
    about.filename = "x.jsonl";
    about.purpose = "fine-tune";
    about.owner = owner;
    return store_->Add(std::move(file), about).id;
  };
  const std::string nobodys = add({});
  const std::string mine = add(-7);
  const std::string theirs = add(8);
  Open();

  EXPECT_EQ(Ids(store_->List({.viewer = -7})), (std::vector<std::string>{mine, nobodys}));
  EXPECT_EQ(Ids(store_->List({.viewer = 0})), std::vector<std::string>{nobodys});
  EXPECT_EQ(Ids(store_->List({})).size(), 3u);
  // A page after another key's file must not tell that the file exists.
  EXPECT_TRUE(Ids(store_->List({.after = theirs, .viewer = -7})).empty());
  EXPECT_EQ(store_->Find(theirs)->owner, 8);
}

TEST_F(FileStoreTest, AFileIsTheSameAfterARestart) {
  Open();
  const StoredFile added = Add("hello", "batch", 3600);
  Open();

  const std::optional<StoredFile> found = store_->Find(added.id);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->id.starts_with("file-") && found->id.size() == 29) << found->id;
  EXPECT_EQ(found->bytes, 5);
  EXPECT_EQ(found->created_at, 1000);
  EXPECT_EQ(found->filename, "x.jsonl");
  EXPECT_EQ(found->purpose, "batch");
  EXPECT_EQ(found->expires_at, 4600);
  EXPECT_EQ(Text(store_->PathOf(added.id)), "hello");
  bool is_used = false;
  store_->Use({added.id}, [&] { is_used = true; });
  EXPECT_TRUE(is_used);
  EXPECT_EQ(ReasonOf([&] { store_->Use({added.id, "file-x"}, [] { FAIL(); }); }), "file_not_found");
  EXPECT_EQ(OnDisk(), std::vector<std::string>{added.id});
}

TEST_F(FileStoreTest, AnUploadThatIsDroppedLeavesNothing) {
  Open();
  {
    TemporaryFile file = store_->BeginFile();
    file.Write("hello");
    EXPECT_EQ(OnDisk().size(), 1u);
  }
  EXPECT_TRUE(OnDisk().empty());
}

TEST_F(FileStoreTest, AFileThatTheTableRefusesLeavesNothing) {
  Open();
  Sql("CREATE TRIGGER refused BEFORE INSERT ON files BEGIN SELECT RAISE(ABORT, 'refused'); END");
  EXPECT_EQ(ReasonOf([&] { Add("hello"); }), "");
  EXPECT_TRUE(store_->List({}).files.empty());
  EXPECT_TRUE(OnDisk().empty());
}

// As when the connection to the database ends between the change and its answer.
TEST_F(FileStoreTest, AFileThatIsListedWithoutAnAnswerKeepsItsBytes) {
  Open();
  Sql("CREATE TRIGGER lost AFTER INSERT ON files BEGIN SELECT RAISE(FAIL, 'lost'); END");
  EXPECT_EQ(ReasonOf([&] { Add("hello"); }), "");

  const std::vector<StoredFile> files = store_->List({}).files;
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(Text(store_->PathOf(files[0].id)), "hello");
}

// Two replicas may end one batch; the second one is refused.
TEST_F(FileStoreTest, AFileKeepsItsBytesWhenASecondOneOfItsIdIsRefused) {
  Open();
  const std::string id = FileStore::NewId();
  const auto add = [&] {
    TemporaryFile file = store_->BeginFile();
    file.Write("hello");
    store_->Add(std::move(file),
                {.filename = "x", .purpose = "batch_output", .expires_after_s = {}, .id = id});
  };
  add();
  EXPECT_EQ(ReasonOf(add), "");

  EXPECT_TRUE(store_->Find(id));
  EXPECT_EQ(Text(store_->PathOf(id)), "hello");
}

TEST_F(FileStoreTest, AStartRemovesUnfinishedUploadsAndFinishesDeletions) {
  Open();
  const StoredFile kept = Add("kept");
  const StoredFile deleted = Add("deleted");
  store_.reset();
  std::ofstream(Files() / "file-0123456789abcdef01234567.part") << "half";
  std::ofstream(Files() / "README") << "somebody's";
  std::filesystem::rename(Files() / deleted.id, Files() / (deleted.id + ".deleted"));

  Open();

  EXPECT_EQ(OnDisk().size(), 2u);
  EXPECT_TRUE(std::filesystem::exists(Files() / kept.id));
  EXPECT_TRUE(std::filesystem::exists(Files() / "README"));
  EXPECT_FALSE(store_->Find(deleted.id));
  EXPECT_TRUE(store_->Find(kept.id));
}

TEST_F(FileStoreTest, AnEmptyOrOlderDatabaseDeletesNoFile) {
  Open();
  const std::string older = Add("in the backup").id;
  store_.reset();
  const std::filesystem::path backup = dir_.path() / "tandem.db.backup";
  std::filesystem::copy_file(dir_.path() / "tandem.db", backup);
  Open();
  const std::string newer = Add("newer than the backup").id;
  store_.reset();

  std::filesystem::copy_file(backup, dir_.path() / "tandem.db",
                             std::filesystem::copy_options::overwrite_existing);
  Open();
  EXPECT_TRUE(store_->Find(older));
  EXPECT_EQ(Text(Files() / "unknown" / newer), "newer than the backup");

  store_.reset();
  std::filesystem::remove(dir_.path() / "tandem.db");
  Open();
  EXPECT_EQ(Text(Files() / "unknown" / older), "in the backup");
  EXPECT_EQ(Text(Files() / "unknown" / newer), "newer than the backup");
}

TEST_F(FileStoreTest, AFileSetAsideReplacesNoneOfTheSameName) {
  Open();
  store_.reset();
  const std::string name = "file-0123456789abcdef01234567";
  std::filesystem::create_directory(Files() / "unknown");
  std::ofstream(Files() / "unknown" / name) << "first";
  std::ofstream(Files() / name) << "second";

  Open();

  EXPECT_EQ(Text(Files() / "unknown" / name), "first");
  EXPECT_EQ(Text(Files() / "unknown" / (name + ".2")), "second");
}

TEST_F(FileStoreTest, FilesComeBackWhenTheDatabaseOfTheirBackupDoes) {
  Open();
  const std::string id = Add("hello").id;
  store_.reset();
  const std::filesystem::path backup = dir_.path() / "tandem.db.backup";
  std::filesystem::rename(dir_.path() / "tandem.db", backup);
  Open();
  EXPECT_FALSE(store_->Find(id));
  store_.reset();

  // The restore procedure of server/README.md.
  std::filesystem::rename(backup, dir_.path() / "tandem.db");
  std::filesystem::rename(Files() / "unknown" / id, Files() / id);
  Open();

  EXPECT_TRUE(store_->Find(id));
  EXPECT_EQ(Text(store_->PathOf(id)), "hello");
}

TEST_F(FileStoreTest, ADeletionSucceedsWhileTheDatabaseHasNoRoom) {
  Open();
  const std::string id = Add("hello").id;
  const std::string other = Add("other").id;
  {
    const tests::FullDisk full;
    store_->Delete(id);
    EXPECT_FALSE(store_->Find(id));
    EXPECT_EQ(Ids(store_->List({})), std::vector<std::string>{other});
    EXPECT_EQ(ReasonOf([&] { store_->Delete(id); }), "file_not_found");
  }
  Open();
  EXPECT_FALSE(store_->Find(id));
  EXPECT_EQ(Ids(store_->List({})), std::vector<std::string>{other});
  EXPECT_EQ(OnDisk(), std::vector<std::string>{other});
}

TEST_F(FileStoreTest, NobodyElseMayReadTheDatabaseOrAFile) {
  Open();
  const std::string id = Add("hello").id;
  const auto mode = [](const std::filesystem::path& path) {
    return static_cast<int>(std::filesystem::status(path).permissions());
  };
  for (const char* name : {"tandem.db", "tandem.db-wal", "tandem.db-shm"}) {
    EXPECT_EQ(mode(dir_.path() / name), 0600) << name;
  }
  store_.reset();
  for (const std::filesystem::path& path : {dir_.path() / "tandem.db", Files() / id}) {
    std::filesystem::permissions(path, std::filesystem::perms(0644));
  }

  Open();

  for (const char* name : {"tandem.db", "tandem.db-wal", "tandem.db-shm"}) {
    EXPECT_EQ(mode(dir_.path() / name), 0600) << name;
  }
  EXPECT_EQ(mode(Files() / id), 0600);
  EXPECT_EQ(mode(Files()), 0700);
}

TEST_F(FileStoreTest, ListsInPagesBothWays) {
  Open();
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(Add("x", i % 2 == 0 ? "batch" : "evals").id);

  const auto list = [&](const std::string& purpose, size_t limit, bool oldest_first,
                        const std::string& after) {
    FileFilter filter;
    if (!purpose.empty()) filter.purpose = purpose;
    filter.limit = limit;
    filter.oldest_first = oldest_first;
    filter.after = after;
    return store_->List(filter);
  };
  EXPECT_EQ(Ids(list("", 10, false, "")),
            (std::vector<std::string>{ids[4], ids[3], ids[2], ids[1], ids[0]}));
  EXPECT_EQ(Ids(list("", 10, true, "")), ids);
  const FilePage first = list("", 2, false, "");
  EXPECT_EQ(Ids(first), (std::vector<std::string>{ids[4], ids[3]}));
  EXPECT_TRUE(first.has_more);
  const FilePage last = list("", 3, false, ids[3]);
  EXPECT_EQ(Ids(last), (std::vector<std::string>{ids[2], ids[1], ids[0]}));
  EXPECT_FALSE(last.has_more);
  EXPECT_EQ(Ids(list("evals", 10, true, ids[1])), std::vector<std::string>{ids[3]});
  EXPECT_TRUE(Ids(list("", 10, false, "file-unknown")).empty());
}

TEST_F(FileStoreTest, DeletedFilesAreGoneAndNeededOnesStay) {
  Open();
  const std::string id = Add("hello").id;
  in_use_ = {id};
  EXPECT_EQ(ReasonOf([&] { store_->Delete(id); }), "in_use");
  EXPECT_TRUE(store_->Find(id));

  in_use_.clear();
  FileStore::Opened open = store_->Open(id);
  store_->Delete(id);

  EXPECT_TRUE(OnDisk().empty());
  EXPECT_FALSE(store_->Find(id));
  EXPECT_EQ(ReasonOf([&] { store_->Delete(id); }), "file_not_found");
  EXPECT_EQ(ReasonOf([&] { store_->Open(id); }), "file_not_found");
  char bytes[5];
  EXPECT_EQ(pread(open.fd.get(), bytes, 5, 0), 5);
}

TEST_F(FileStoreTest, FilesExpireUnlessAJobNeedsTheirBytes) {
  Open();
  const std::string soon = Add("1", "batch", 3600).id;
  const std::string needed = Add("2", "batch", 3600).id;
  const std::string later = Add("3", "batch", 7200).id;
  in_use_ = {needed};

  now_ = 1000 + 3599;
  EXPECT_EQ(store_->List({}).files.size(), 3u);
  now_ = 1000 + 3600;
  EXPECT_EQ(Ids(store_->List({})), std::vector<std::string>{later});
  EXPECT_FALSE(store_->Find(needed));
  EXPECT_TRUE(std::filesystem::exists(dir_.path() / "files" / needed));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "files" / soon));

  in_use_.clear();
  EXPECT_FALSE(store_->Find(needed));
  EXPECT_EQ(OnDisk(), std::vector<std::string>{later});
  now_ = 1'000'000;
  Open();
  EXPECT_TRUE(OnDisk().empty());
}

TEST(SafeFileName, IsOneHarmlessComponent) {
  EXPECT_EQ(SafeFileName("a.jsonl"), "a.jsonl");
  EXPECT_EQ(SafeFileName("../../etc/passwd"), "passwd");
  EXPECT_EQ(SafeFileName("C:\\dir\\a b.txt"), "a b.txt");
  EXPECT_EQ(SafeFileName("a\r\n\t\x7f\xc2\x85z"), "az");
  EXPECT_EQ(SafeFileName(std::string_view("a\0b", 3)), "ab");
  EXPECT_EQ(SafeFileName("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"),
            "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(SafeFileName("a\xff\xc3"), "a\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(SafeFileName("\xed\xa0\x80\xc0\xaf"),
            "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  for (const char* bad : {"", "/", "dir/", "..", ".", "a/..", "\x01\x02", "..\x07"}) {
    EXPECT_EQ(SafeFileName(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(SafeFileName(std::string(300, 'x')), std::string(255, 'x'));
  // Cut between characters: 84 characters of three bytes are 252 bytes.
  std::string euros;
  for (int i = 0; i < 90; ++i) euros += "\xe2\x82\xac";
  EXPECT_EQ(SafeFileName("xx" + euros)->size(), 2u + 84 * 3);
}

}  // namespace
}  // namespace tandem::server
