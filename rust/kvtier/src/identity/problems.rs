//! What can be wrong with facts.

use super::facts::Facts;
use super::text::Text;

impl Facts {
    /// Everything that is wrong with these facts, each with the field, its value and what is accepted.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let sizes = [
            ("tokens_per_hash", Some(self.tokens_per_hash)),
            ("blocks_per_file", Some(self.blocks_per_file)),
            ("tp_size", Some(self.tp_size)),
            ("pp_size", Some(self.pp_size)),
            ("pcp_size", Some(self.pcp_size)),
            ("dcp_size", Some(self.dcp_size)),
            ("row_bytes", self.row_bytes),
            ("payload_bytes", self.payload_bytes),
            ("worker_bytes", self.worker_bytes),
            ("blocks_per_chunk", self.blocks_per_chunk),
        ];
        for (name, _) in sizes.into_iter().filter(|(_, size)| *size == Some(0)) {
            problems.push(format!("{name} is 0, an integer of at least 1 is accepted"));
        }
        for (i, _) in self.kv_cache_groups.iter().enumerate().filter(|(_, group)| group.tokens_per_block == 0) {
            problems.push(format!("kv_cache_groups[{i}].tokens_per_block is 0, an integer of at least 1 is accepted"));
        }
        let texts = [
            ("model_name", Some(&self.model_name)),
            ("inference_engine", Some(&self.inference_engine)),
            ("canonical_format", self.canonical_format.as_ref()),
            ("kv_cache_layout", self.kv_cache_layout.as_ref()),
            ("model_id", self.model_id.as_ref()),
            ("model_revision", self.model_revision.as_ref()),
            ("model_runner", self.model_runner.as_ref()),
            ("namespace", self.namespace.as_ref()),
        ];
        for (name, _) in texts.into_iter().filter(|(_, text)| text.is_some_and(Text::is_empty)) {
            problems.push(format!("{name} is empty, text that says something is accepted"));
        }
        if let Some(namespace) = &self.namespace {
            let shown = namespace.to_string_lossy();
            if shown.contains("..") || shown.contains(['/', '\\']) || shown.contains(char::is_control) {
                problems.push(format!(
                    "namespace is {namespace:?}, text without \"..\", slashes, backslashes and control characters is accepted: \
                     it is a name, not a path"
                ));
            }
        }
        if let (Some(payload), Some(row)) = (self.payload_bytes, self.row_bytes)
            && payload > row
        {
            problems.push(format!("payload_bytes is {payload}, at most the row_bytes {row} are accepted"));
        }
        if self.replicated_layout {
            for (name, size, split) in [
                ("pp_size", self.pp_size, "layers"),
                ("pcp_size", self.pcp_size, "prompt tokens"),
                ("dcp_size", self.dcp_size, "cached tokens"),
            ] {
                if size > 1 {
                    problems.push(format!(
                        "{name} is {size} with replicated_layout, only 1 is accepted: it splits {split} between workers, \
                         so their rows are not the same bytes"
                    ));
                }
            }
        }
        problems
    }
}
