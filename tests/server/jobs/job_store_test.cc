#include "server/jobs/job_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/engine/io/file_helpers.h"
#include "tests/server/jobs/run_sql.h"

namespace tandem::server {
namespace {

using engine::ExpectError;
using engine::FileText;
using engine::TemporaryDir;
using engine::WriteFile;

JobRecord NewJob(const std::string& id, JobType type = JobType::kTrain) {
  JobRecord record;
  record.job.id = id;
  record.job.type = type;
  record.job.created_at = 1'700'000'000;
  record.job.request_json = R"({"steps":5})";
  return record;
}

std::vector<std::string> Ids(const JobPage& page) {
  std::vector<std::string> ids;
  for (const Job& job : page.jobs) ids.push_back(job.id);
  return ids;
}

TEST(JobStore, EveryFieldSurvivesReopening) {
  const TemporaryDir dir;
  JobRecord written = NewJob("job-1");
  {
    JobStore store = JobStore::Open(dir.path());
    store.Create(written);
    written.job.status = JobStatus::kRunning;
    written.job.started_at = 1'700'000'001;
    written.job.finished_at = 1'700'000'002;
    written.job.progress = 0.25;
    written.job.error = JobError{"it's \"quoted\"", "bad_data"};
    written.job.result_json = R"({"model_dir":"artifact"})";
    written.process = ProcessIdentity{12, 345, "boot"};
    written.wish = JobWish::kPause;
    written.restarts = 2;
    written.events_offset = 678;
    store.Update(written);
  }

  JobStore store = JobStore::Open(dir.path());
  const auto read = store.Find("job-1");

  ASSERT_TRUE(read);
  EXPECT_EQ(read->job.id, "job-1");
  EXPECT_EQ(read->job.type, JobType::kTrain);
  EXPECT_EQ(read->job.status, JobStatus::kRunning);
  EXPECT_EQ(read->job.created_at, 1'700'000'000);
  EXPECT_EQ(read->job.started_at, 1'700'000'001);
  EXPECT_EQ(read->job.finished_at, 1'700'000'002);
  EXPECT_EQ(read->job.progress, 0.25);
  ASSERT_TRUE(read->job.error);
  EXPECT_EQ(read->job.error->message, "it's \"quoted\"");
  EXPECT_EQ(read->job.error->code, "bad_data");
  EXPECT_EQ(read->job.request_json, R"({"steps":5})");
  EXPECT_EQ(read->job.result_json, R"({"model_dir":"artifact"})");
  EXPECT_EQ(read->job.dir, dir / "jobs/job-1");
  ASSERT_TRUE(read->process);
  EXPECT_EQ(read->process->pid, 12);
  EXPECT_EQ(read->process->start_ticks, 345u);
  EXPECT_EQ(read->process->boot_id, "boot");
  EXPECT_EQ(read->wish, JobWish::kPause);
  EXPECT_EQ(read->restarts, 2);
  EXPECT_EQ(read->events_offset, 678);
}

TEST(JobStore, AbsentFieldsStayAbsent) {
  const TemporaryDir dir;
  JobStore store = JobStore::Open(dir.path());
  store.Create(NewJob("job-1"));

  const auto read = store.Find("job-1");

  ASSERT_TRUE(read);
  EXPECT_FALSE(read->job.started_at);
  EXPECT_FALSE(read->job.finished_at);
  EXPECT_FALSE(read->job.error);
  EXPECT_FALSE(read->job.result_json);
  EXPECT_FALSE(read->process);
  EXPECT_FALSE(store.Find("job-2"));
}

TEST(JobStore, CountsByTypeAndStatus) {
  const TemporaryDir dir;
  JobStore store = JobStore::Open(dir.path());
  EXPECT_TRUE(store.Counts().empty());
  for (const char* id : {"job-a", "job-b", "job-c"}) store.Create(NewJob(id));
  EXPECT_EQ(store.Counts(), (JobCounts{{{"train", "queued"}, 3}}));
  JobRecord ended = *store.Find("job-b");
  ended.job.status = JobStatus::kFailed;
  store.Update(ended);

  EXPECT_EQ(store.Counts(), (JobCounts{{{"train", "queued"}, 2}, {{"train", "failed"}, 1}}));
}

TEST(JobStore, PagesRunFromNewestToOldestWithoutGaps) {
  const TemporaryDir dir;
  JobStore store = JobStore::Open(dir.path());
  for (const char* id : {"job-a", "job-b", "job-c", "job-d", "job-e"}) store.Create(NewJob(id));
  JobFilter filter;
  filter.limit = 2;

  const JobPage first = store.List(filter);
  filter.after = first.jobs.back().id;
  const JobPage second = store.List(filter);
  filter.after = second.jobs.back().id;
  const JobPage third = store.List(filter);

  EXPECT_EQ(Ids(first), (std::vector<std::string>{"job-e", "job-d"}));
  EXPECT_TRUE(first.has_more);
  EXPECT_EQ(Ids(second), (std::vector<std::string>{"job-c", "job-b"}));
  EXPECT_TRUE(second.has_more);
  EXPECT_EQ(Ids(third), std::vector<std::string>{"job-a"});
  EXPECT_FALSE(third.has_more);
}

TEST(JobStore, FullLastPageHasNoMore) {
  const TemporaryDir dir;
  JobStore store = JobStore::Open(dir.path());
  for (const char* id : {"job-a", "job-b"}) store.Create(NewJob(id));
  JobFilter filter;
  filter.limit = 2;

  EXPECT_FALSE(store.List(filter).has_more);
}

TEST(JobStore, FiltersByTypeAndStatus) {
  const TemporaryDir dir;
  JobStore store = JobStore::Open(dir.path());
  JobRecord done = NewJob("job-a");
  store.Create(done);
  store.Create(NewJob("job-b", JobType::kConvert));
  store.Create(NewJob("job-c"));
  done.job.status = JobStatus::kSucceeded;
  store.Update(done);

  JobFilter trains;
  trains.type = JobType::kTrain;
  JobFilter queued_trains = trains;
  queued_trains.status = JobStatus::kQueued;

  EXPECT_EQ(Ids(store.List(trains)), (std::vector<std::string>{"job-c", "job-a"}));
  EXPECT_EQ(Ids(store.List(queued_trains)), std::vector<std::string>{"job-c"});
  EXPECT_EQ(store.WithStatus(JobStatus::kQueued).size(), 2u);
  EXPECT_EQ(store.WithStatus(JobStatus::kQueued).front().job.id, "job-b");
}

TEST(JobStore, UnknownAfterIsTheCallersFault) {
  const TemporaryDir dir;
  JobStore store = JobStore::Open(dir.path());
  JobFilter filter;
  filter.after = "job-nobody";

  ExpectError(ErrorCode::kInvalidArgument, {"after", "job-nobody"}, [&] { store.List(filter); });
}

TEST(JobStore, SecondServerOnADataDirIsRefusedWithThePidOfTheFirst) {
  const TemporaryDir dir;
  const JobStore store = JobStore::Open(dir.path());

  ExpectError(ErrorCode::kFailedPrecondition,
              {dir.path().string(), "process " + std::to_string(::getpid())},
              [&] { JobStore::Open(dir.path()); });
}

TEST(JobStore, NobodyElseMayEnterTheDataDir) {
  const TemporaryDir dir;
  const std::filesystem::path old = dir / "old";
  std::filesystem::create_directories(old / "jobs");
  for (const std::filesystem::path& path : {old, old / "jobs"}) {
    std::filesystem::permissions(path, std::filesystem::perms(0755));
  }
  for (const std::filesystem::path& data_dir : {dir / "new", old}) {
    const JobStore store = JobStore::Open(data_dir);
    for (const std::filesystem::path& path : {data_dir, data_dir / "jobs"}) {
      EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all)
          << path;
    }
    EXPECT_EQ(std::filesystem::status(data_dir / "tandem.db").permissions(),
              std::filesystem::perms(0600));
  }
}

TEST(JobStore, ASharedDirectoryStaysShared) {
  const TemporaryDir dir;
  std::filesystem::permissions(dir.path(), std::filesystem::perms(01777));

  const JobStore store = JobStore::Open(dir.path());

  EXPECT_EQ(std::filesystem::status(dir.path()).permissions(), std::filesystem::perms(01777));
}

TEST(JobStore, ADirectoryThatOtherProgramsUseKeepsItsRights) {
  const TemporaryDir dir;
  std::filesystem::create_directories(dir / "www");
  std::filesystem::create_directories(dir / "jobs");
  WriteFile(dir / "jobs/report.txt", "of another program");
  for (const std::filesystem::path& path : {dir.path(), dir / "jobs"}) {
    std::filesystem::permissions(path, std::filesystem::perms(0755));
  }
  for (int start = 0; start < 2; ++start) {
    const JobStore store = JobStore::Open(dir.path());
    for (const std::filesystem::path& path : {dir.path(), dir / "jobs"}) {
      EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0755)) << path;
    }
    EXPECT_EQ(std::filesystem::status(dir / "tandem.db").permissions(),
              std::filesystem::perms(0600));
  }
}

TEST(JobStore, ARefusedDirectoryKeepsItsRights) {
  const TemporaryDir dir;
  RunSql(dir / "tandem.db", "CREATE TABLE theirs (x)");
  std::filesystem::permissions(dir.path(), std::filesystem::perms(0755));

  ExpectError(ErrorCode::kDataLoss, {"a database of another program"},
              [&] { JobStore::Open(dir.path()); });
  EXPECT_EQ(std::filesystem::status(dir.path()).permissions(), std::filesystem::perms(0755));
}

TEST(JobStore, NewerSchemaIsRefusedAndLeftAlone) {
  const TemporaryDir dir;
  { JobStore::Open(dir.path()); }
  RunSql(dir / "tandem.db", "PRAGMA user_version = 9");

  ExpectError(ErrorCode::kFailedPrecondition, {"tandem.db", "schema version 9", "up to 8"},
              [&] { JobStore::Open(dir.path()); });
}

// Replicas with a data directory each share the database only.
TEST(JobStore, ADirectoryOfItsOwnHasSpecsInTheDatabase) {
  const TemporaryDir dir;
  JobStore store = JobStore::Open(dir.path(), {}, "", JobStore::DataDir::kOwn);
  const std::string spec = "{\"train\":\"" + (dir / "blobs/file-1").string() + "\"}";
  store.Create(NewJob("job-a"), spec);
  EXPECT_EQ(store.SpecOf("job-a"), spec);
  EXPECT_EQ(store.SpecOf("job-b"), "");
  ExpectError(ErrorCode::kInvalidArgument, {"must not contain"},
              [&] { store.Create(NewJob("job-b"), R"({"x":"{tandem-data-dir}/y"})"); });
  EXPECT_FALSE(store.Find("job-b"));

  EXPECT_FALSE(store.Find("job-a")->job.is_model_deleted);
  store.MarkModelDeleted("job-a");
  EXPECT_TRUE(store.Find("job-a")->job.is_model_deleted);
}

TEST(JobStore, RecordsOfAVersionWithoutOwnersBelongToNobody) {
  const TemporaryDir dir;
  {
    JobStore store = JobStore::Open(dir.path());
    store.Create(NewJob("job-old"));
  }
  RunSql(dir / "tandem.db",
         "ALTER TABLE jobs DROP COLUMN owner; ALTER TABLE files DROP COLUMN owner; "
         "ALTER TABLE jobs DROP COLUMN replica; ALTER TABLE jobs DROP COLUMN spec; "
         "ALTER TABLE jobs DROP COLUMN model_deleted; ALTER TABLE files DROP COLUMN blob; "
         "ALTER TABLE files DROP COLUMN sha256; DROP TABLE blob_garbage; DROP TABLE responses; "
         "DROP TABLE batches; "
         "DROP TABLE leases; DROP TABLE adapters; PRAGMA user_version = 3");
  JobStore store = JobStore::Open(dir.path());
  JobRecord mine = NewJob("job-mine");
  mine.job.owner = -5;
  store.Create(mine);
  JobRecord theirs = NewJob("job-theirs");
  theirs.job.owner = 6;
  store.Create(theirs);

  EXPECT_FALSE(store.Find("job-old")->job.owner);
  EXPECT_EQ(store.Find("job-mine")->job.owner, -5);
  JobFilter filter;
  filter.viewer = -5;
  EXPECT_EQ(Ids(store.List(filter)), (std::vector<std::string>{"job-mine", "job-old"}));
  filter.viewer = 0;
  EXPECT_EQ(Ids(store.List(filter)), std::vector<std::string>{"job-old"});
  EXPECT_EQ(Ids(store.List({})).size(), 3u);
}

TEST(JobStore, ForeignDatabaseIsRefused) {
  const TemporaryDir dir;
  RunSql(dir / "tandem.db", "CREATE TABLE theirs (x)");

  ExpectError(ErrorCode::kDataLoss, {"tandem.db", "of another program"},
              [&] { JobStore::Open(dir.path()); });
}

TEST(JobStore, FileThatIsNoDatabaseIsRefusedAndLeftAlone) {
  const TemporaryDir dir;
  const std::string text(5000, 'x');
  WriteFile(dir / "tandem.db", text);

  ExpectError(ErrorCode::kDataLoss, {"tandem.db", "corrupt", "move it away"},
              [&] { JobStore::Open(dir.path()); });
  EXPECT_EQ(FileText(dir / "tandem.db"), text);
}

TEST(JobStore, DamagedPagesAreNoticedAtOpening) {
  const TemporaryDir dir;
  {
    JobStore store = JobStore::Open(dir.path());
    for (int i = 0; i < 200; ++i) store.Create(NewJob("job-" + std::to_string(i)));
  }
  std::string bytes = FileText(dir / "tandem.db");
  ASSERT_GT(bytes.size(), 5 * 4096u);
  for (size_t page = 2; page < 5; ++page) {
    bytes.replace(page * 4096, 200, std::string(200, '\xEE'));
  }
  WriteFile(dir / "tandem.db", bytes);

  ExpectError(ErrorCode::kDataLoss, {"tandem.db", "corrupt"}, [&] { JobStore::Open(dir.path()); });
}

TEST(JobStore, DataDirThatCannotBeMadeIsNamed) {
  const TemporaryDir dir;
  WriteFile(dir / "file", "");

  ExpectError(ErrorCode::kIo, {(dir / "file").string()},
              [&] { JobStore::Open(dir / "file/data"); });
}

}  // namespace
}  // namespace tandem::server
