// Several supervisors of one PostgreSQL database; each has the part of a replica. They need
// TANDEM_TEST_POSTGRES: tests/cluster/with_postgres sets it.

#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/base/attempt.h"
#include "server/database/database.h"
#include "server/database/lease.h"
#include "server/database/replica_lease.h"
#include "server/jobs/prepared_runner.h"
#include "tests/server/jobs/job_supervisor_fixture.h"

namespace tandem::server {
namespace {

using std::chrono::seconds;

class JobReplicas : public JobSupervisorTest {
 protected:
  void SetUp() override {
    const char* url = std::getenv("TANDEM_TEST_POSTGRES");
    if (url == nullptr) GTEST_SKIP() << "TANDEM_TEST_POSTGRES is not set";
    source_.url = url;
    static constexpr Schema kNone{"none", 0, {}};
    Database database(source_, kNone);
    for (const char* sql : {"DROP SCHEMA public CASCADE", "CREATE SCHEMA public"}) {
      Query(database.Prepare(sql)).Next();
    }
  }

  std::unique_ptr<JobSupervisor> Replica(const std::string& name) {
    Database database(source_);
    Lease(database, NameOfReplicaLease(name), name).TakeOrKeep(seconds(600));
    return std::make_unique<JobSupervisor>(JobStore::Open(data_dir(), source_, name),
                                           FastOptions(dir_ / "script"), nullptr);
  }

  // A replica with a data directory of its own.
  std::unique_ptr<JobSupervisor> LoneReplica(const std::string& name) {
    Database database(source_);
    Lease(database, NameOfReplicaLease(name), name).TakeOrKeep(seconds(600));
    JobSupervisorOptions options = FastOptions(dir_ / "script");
    options.runner =
        std::make_shared<PreparedJobRunner>(std::make_shared<LocalJobRunner>(options.program),
                                            [](const JobStart& job, const std::stop_token&) {
                                              std::filesystem::create_directories(job.dir);
                                              WriteFile(job.dir / "spec.json", job.spec);
                                            });
    return std::make_unique<JobSupervisor>(
        JobStore::Open(dir_ / name, source_, name, JobStore::DataDir::kOwn), options, nullptr);
  }
  Job In(const std::string& replica, Job job) const {
    job.dir = dir_ / replica / "jobs" / job.id;
    return job;
  }

  static bool HasEnded(JobSupervisor& replica, const std::string& id, JobStatus status) {
    return WaitFor([&] { return replica.Find(id).value().status == status; });
  }

  void Sql(const std::string& text) {
    Database database(source_);
    Query(database.Prepare(text)).Next();
  }

  DatabaseSource source_;
};

TEST_F(JobReplicas, RunEveryJobOnceWhereverItWasSubmitted) {
  Script({kCountRuns, kSucceed});
  const auto a = Replica("a");
  const auto b = Replica("b");
  std::vector<Job> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(a->Submit(JobType::kTrain, "{}"));
    jobs.push_back(b->Submit(JobType::kTrain, "{}"));
  }

  for (const Job& job : jobs) {
    EXPECT_TRUE(HasEnded(*b, job.id, JobStatus::kSucceeded));
    EXPECT_EQ(Runs(job), 1u);
  }
}

TEST_F(JobReplicas, CancelJobsOfEachOther) {
  Script({kStopOnTerm, kCountRuns, kWaitForGo, kSucceed});
  const auto a = Replica("a");
  const auto b = Replica("b");
  const Job job = b->Submit(JobType::kTrain, "{}");
  WaitForFirstRun(job);

  b->Cancel(job.id);

  EXPECT_TRUE(HasEnded(*a, job.id, JobStatus::kCancelled));
}

TEST_F(JobReplicas, TellTheirWatchersOfEachOther) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  const auto a = Replica("a");
  const auto b = Replica("b");
  const Job job = a->Submit(JobType::kTrain, "{}");
  std::atomic<bool> has_seen_end = false;
  const JobSubscription subscription = b->Subscribe(job.id, [&] {
    if (IsFinished(b->Find(job.id).value().status)) has_seen_end = true;
  });

  Go(job);

  EXPECT_TRUE(WaitFor([&] { return has_seen_end.load(); }));
}

TEST_F(JobReplicas, TakeOverTheJobsOfOneThatStops) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  auto a = Replica("a");
  const Job job = a->Submit(JobType::kTrain, "{}");
  WaitForFirstRun(job);
  const auto b = Replica("b");

  a->Stop(StopMode::kLeaveJobs);
  a.reset();
  Go(job);

  EXPECT_TRUE(HasEnded(*b, job.id, JobStatus::kSucceeded));
  EXPECT_EQ(Runs(job), 1u);
}

// The lease passes on while its owner believes in it, as after a long sleep of its machine.
TEST_F(JobReplicas, DoNotWriteWithALostLease) {
  Script({kCountRuns, kWaitForGo, kSucceed});
  const auto a = Replica("a");
  const Job job = a->Submit(JobType::kTrain, "{}");
  WaitForFirstRun(job);
  Sql("UPDATE leases SET owner = 'x', epoch = epoch + 1 WHERE name = 'jobs'");
  Go(job);
  ASSERT_TRUE(WaitFor([&] { return std::filesystem::exists(job.dir / "result.json"); }));
  // The supervisor polls every few milliseconds, so it has long seen the end.
  std::this_thread::sleep_for(seconds(1));
  EXPECT_EQ(a->Find(job.id).value().status, JobStatus::kRunning);

  Sql("UPDATE leases SET expires_at = 0 WHERE name = 'jobs'");

  EXPECT_TRUE(HasEnded(*a, job.id, JobStatus::kSucceeded));
  EXPECT_EQ(Runs(job), 1u);
}

TEST_F(JobReplicas, AChangeOfTheSupervisorNeedsTheLeaseOfItsEpoch) {
  using By = JobStore::Change::By;
  JobStore store = JobStore::Open(data_dir(), source_, "a");
  ASSERT_TRUE(store.KeepLease());
  JobStore::Change(store, By::kSupervisor).Commit();
  Sql("UPDATE leases SET owner = 'x', epoch = epoch + 1 WHERE name = 'jobs'");

  const auto refused = ErrorOf([&] { JobStore::Change(store, By::kSupervisor).Commit(); });

  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason(), "lease_lost");
  JobStore::Change(store, By::kAnyServer).Commit();
}

TEST_F(JobReplicas, OwnWorkEndsWithItsReplicaOnly) {
  Script({kSucceed});
  auto a = Replica("a");
  auto b = Replica("b");
  const std::string of_a = a->BeginOwn(JobType::kModelLoad, "{}", nullptr).id;
  const std::string of_b = b->BeginOwn(JobType::kModelLoad, "{}", nullptr).id;

  b.reset();
  Sql("UPDATE leases SET expires_at = 0 WHERE name = 'replica/b'");

  EXPECT_TRUE(HasEnded(*a, of_b, JobStatus::kFailed));
  EXPECT_EQ(a->Find(of_a).value().status, JobStatus::kQueued);
  a->EndOwn(of_a, {});
}

TEST_F(JobReplicas, WithDirectoriesOfTheirOwnRunEachOthersJobsInTheirs) {
  Script({kCountRuns, kSucceed});
  const auto a = LoneReplica("a");
  const auto b = LoneReplica("b");
  const std::string spec = "{\"train\":\"" + (dir_ / "b" / "blobs/x").string() + "\"}";
  const Job job = b->Submit(JobType::kTrain, spec);
  EXPECT_TRUE(HasEnded(*b, job.id, JobStatus::kSucceeded));
  EXPECT_EQ(FileText(In("a", job).dir / "spec.json"),
            "{\"train\":\"" + (dir_ / "a" / "blobs/x").string() + "\"}");
  EXPECT_EQ(Runs(In("a", job)), 1u);
}

// Nobody else could find the run, so the next supervisor starts another one.
TEST_F(JobReplicas, WithDirectoriesOfTheirOwnEndTheRunsOfALostLease) {
  Script({kStopOnTerm, kCountRuns, kWaitForGo, kSucceed});
  const auto a = LoneReplica("a");
  const Job job = a->Submit(JobType::kTrain, "{}");
  WaitForFirstRun(job);
  const std::optional<ChildProcess> run = ChildProcess::Find(job.dir, std::nullopt);
  ASSERT_TRUE(run);
  const auto b = LoneReplica("b");
  Sql("UPDATE leases SET owner = 'b', epoch = epoch + 1 WHERE name = 'jobs'");
  EXPECT_TRUE(WaitFor([&] { return !IsAlive(*run->identity()); }));
  EXPECT_TRUE(WaitFor([&] { return Runs(In("b", job)) == 1; }));
  Go(In("b", job));
  EXPECT_TRUE(HasEnded(*a, job.id, JobStatus::kSucceeded));
}

TEST_F(JobReplicas, ShareADirectoryOnlyWithReplicas) {
  const auto a = Replica("a");
  ExpectError(ErrorCode::kFailedPrecondition, {"in use"}, [&] { JobStore::Open(data_dir()); });
}

}  // namespace
}  // namespace tandem::server
