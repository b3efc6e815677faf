output "cluster" {
  value       = google_container_cluster.cluster.name
  description = "Name of the cluster, for kubectl's credentials"
}

output "artifacts" {
  value       = google_storage_bucket.artifacts.url
  description = "URL of the bucket of checkpoints"
}

output "datasets" {
  value       = google_storage_bucket.datasets.url
  description = "URL of the bucket of data sets"
}

output "registry" {
  value       = "${var.region}-docker.pkg.dev/${var.project_id}/${google_artifact_registry_repository.images.repository_id}"
  description = "Prefix of the images"
}
